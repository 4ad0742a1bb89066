"""Files in shared folders that mounts cannot protect: compared with a copy at the end, and restored.

Usually mounts are enough: they are read-only, and a mount point cannot be renamed. With `--nest` a program with a
mount namespace of its own can take all mounts away there, and then rename and change it; and a file with a second name
(a hard link) can be changed by that one. So this is for what must not be changed, and never for what must be hidden.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from exeat.jail.files.trees import HANDLE, STEP, open_without_links, path_of
from exeat.paths import look, opened, printable, root_of, up_from

BLOCKED = ".exeat-blocked"
_MAX_BYTES = 16 << 20  # of copies, in all
_MAX_ENTRIES = 10_000
_MOST_LOOKED_AT = 1_000  # for second names, in each place
_MOST_LINES = 10
_DO_NOT_USE = "do not use it"


@contextmanager
def unlocked(folder: int) -> Iterator[None]:
    """The command can have closed a folder of our user's. It is so again afterwards."""
    found = os.fstat(folder)
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IRWXU == stat.S_IRWXU or found.st_uid != os.geteuid():
        yield
        return
    os.chmod(path_of(folder), mode | stat.S_IRWXU)
    try:
        yield
    finally:
        os.chmod(path_of(folder), mode)


def set_aside(here: str) -> str:
    """Give whatever is there another name, where no program looks for it. Its end; "" if nothing is there.

    Nothing is followed. The second name cannot be guessed, so the command cannot have taken it.
    """
    end = BLOCKED if not os.path.lexists(f"{here}{BLOCKED}") else f"{BLOCKED}-{os.urandom(4).hex()}"
    try:
        os.rename(here, f"{here}{end}")
    except FileNotFoundError:
        return ""
    return end


def has_second_name(path: str) -> bool:
    """Of a file, or of one in a folder: can it be reached by a way that no mount is on?"""
    return any(stat.S_ISREG(found.st_mode) and found.st_nlink > 1 for _, found in islice(_walk(path), _MOST_LOOKED_AT))


class _Entry(NamedTuple):
    """What a file, link or folder was. `content` of a file, or where a link leads; None if too large, or a folder."""

    found: os.stat_result
    content: bytes | None

    def is_like(self, here: str) -> bool:
        found = look(here)
        if found is None or found.st_mode != self.found.st_mode:
            return False
        if self.content is not None:
            return _read(here, found.st_mode, len(self.content) + 1) == self.content
        return stat.S_ISDIR(found.st_mode) or self.found.st_ctime_ns == found.st_ctime_ns

    def make(self, here: str) -> None:
        """Where nothing is."""
        mode = self.found.st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.fsdecode(self.content or b""), here)
        elif stat.S_ISDIR(mode):
            os.mkdir(here)
            os.chmod(here, stat.S_IMODE(mode))
        else:
            descriptor = os.open(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(self.content or b"")
                os.fchmod(descriptor, stat.S_IMODE(mode))
        if os.geteuid() == 0:
            os.chown(here, self.found.st_uid, self.found.st_gid, follow_symlinks=False)


class HeldPlaces:
    """Paths, each with the folder that it is shared in, as they are before the command starts.

    The paths have no links on the way below their folder. Of `folders` it matters only that they are the same.
    """

    def __init__(self, places: Iterable[tuple[str, str]], folders: Iterable[tuple[str, str]] = ()) -> None:
        places = list(places)
        both = [*places, *folders]
        self._left_bytes, self._left_entries = _MAX_BYTES, _MAX_ENTRIES
        self._descriptors: list[tuple[str, int]] = []
        self._roots = {root: open_without_links(root) for root in {root for root, _ in both}}
        on_way = {step for root, path in both for step in up_from(path, root)}
        for path in sorted(on_way, key=lambda path: (path.count("/"), path)):  # folders before what is in them
            with suppress(FileNotFoundError):
                self._descriptors.append((path, os.open(path, HANDLE)))
        self._trees = {path: self._copy(path) for _, path in places if os.path.lexists(path)}

    def _copy(self, top: str) -> dict[str, _Entry]:
        copied = {}
        for path, found in _walk(top):
            self._left_entries -= 1
            if self._left_entries < 0:
                break
            most = min(found.st_size, self._left_bytes)
            content = _read(path, found.st_mode, most + 1)
            if content is not None and len(content) > most:
                content = None
            self._left_bytes -= len(content or b"")
            copied[path] = _Entry(found, content)
        return copied

    def put_back(self) -> list[str]:
        """When no process of the command is left. A line for each place that was another, with what became of it."""
        said = [self._put_back(path, descriptor) for path, descriptor in self._descriptors]
        for top, tree in self._trees.items():
            said += [self._block(path) for path in self._new_in(top, tree)]
            said += [self._restore(path, entry) for path, entry in tree.items()]
        said = sorted(filter(None, said), key=lambda line: not line.endswith(_DO_NOT_USE))
        more = [f"and {len(said) - _MOST_LINES} more like these"] if len(said) > _MOST_LINES else []
        return [*said[:_MOST_LINES], *more]

    def close(self) -> None:
        for descriptor in (*(each for _, each in self._descriptors), *self._roots.values()):
            os.close(descriptor)
        self._descriptors.clear()
        self._roots.clear()

    @contextmanager
    def _at(self, path: str) -> Iterator[str]:
        """Another name for a path, that leads through no link. Raises OSError if there is none.

        The command can have put links on the way, to have us write elsewhere, and can have closed folders.
        """
        root = root_of(path, self._roots)
        if not root:
            raise FileNotFoundError(errno.ENOENT, "it is in no folder that is shared")
        *way, name = os.path.relpath(path, root).split("/")
        with ExitStack() as stack:
            folder = self._roots[root]
            stack.enter_context(unlocked(folder))
            for step in way:
                folder = stack.enter_context(opened(step, STEP, folder))
                stack.enter_context(unlocked(folder))
            yield f"{path_of(folder)}/{name}"

    def _put_back(self, path: str, descriptor: int) -> str:
        """By another name it is the same. Nothing to say if it is still there."""
        try:
            with self._at(path) as here:
                if _is_it(here, descriptor):
                    return ""
                other = set_aside(here)
                where = os.readlink(path_of(descriptor))
                with suppress(FileNotFoundError, NotADirectoryError), self._at(where) as there:
                    if _is_it(there, descriptor):
                        os.rename(there, here)
                        return f"{printable(path)} was moved to {printable(where)}, and is back{_left(path, other)}"
        except OSError as error:
            return _failure(path, error)
        return f"{printable(path)} was removed{_left(path, other)}"

    def _new_in(self, top: str, tree: dict[str, _Entry]) -> list[str]:
        if self._left_entries < 0:
            return []  # it is not known what was there
        try:
            with self._at(top) as here:
                found = [top + path[len(here) :] for path, _ in _walk(here)]
        except OSError:
            return []  # then it cannot be restored either, and that is said
        return [path for path in found if path not in tree]

    def _block(self, path: str) -> str:
        try:
            with self._at(path) as here:
                other = set_aside(here)
        except FileNotFoundError:
            return ""  # its folder has been set aside
        except OSError as error:
            return _failure(path, error)
        return f"{printable(path)} was made{_left(path, other)}" if other else ""

    def _restore(self, path: str, entry: _Entry) -> str:
        """What is missing or changed is written again."""
        try:
            with self._at(path) as here:
                if entry.is_like(here):
                    return ""
                if entry.content is None and not stat.S_ISDIR(entry.found.st_mode):
                    what = "may have been changed, and there is no copy of it: look at it before you use it"
                    return f"{printable(path)} {what}"
                other = set_aside(here)
                entry.make(here)
        except OSError as error:
            return _failure(path, error)
        return f"{printable(path)} was changed, and is as it was{_left(path, other)}"


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """It and all in it, folders first. No link is followed."""
    waiting = deque([top])
    while waiting:
        path = waiting.popleft()
        found = look(path)
        if found is None:
            continue  # gone
        yield path, found
        if stat.S_ISDIR(found.st_mode):
            with suppress(OSError):  # it is there all the same
                waiting += [f"{path}/{name}" for name in sorted(os.listdir(path))]


def _read(path: str, mode: int, limit: int) -> bytes | None:
    """Of a file, or a link. None for all else."""
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(mode):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb", buffering=0) as file:
        return file.read(limit)


def _is_it(path: str, descriptor: int) -> bool:
    found = look(path)
    return found is not None and os.path.samestat(found, os.fstat(descriptor))


def _left(path: str, end: str) -> str:
    return f"; what the command left there is {printable(path)}{end}" if end else ""


def _failure(path: str, error: OSError) -> str:
    return f"{printable(path)} was changed, and cannot be put back ({error.strerror}): {_DO_NOT_USE}"
