"""What mounts do not hold in shared folders is compared with a copy when the command is over, and put back.

Otherwise they hold it: they are read-only, and what is a mount point cannot be renamed. With `--nest` a program with a
mount namespace of its own can take all mounts away there, and then rename and change it; and a file with a second name
(a hard link) can be changed by that one. So this is for what must not be changed, and never for what must be hidden.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from exeat.jail.files.trees import open_without_links

_BLOCKED = ".exeat-blocked"
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = _HERE | os.O_DIRECTORY
_MAX_BYTES = 16 << 20  # of copies, in all
_MAX_ENTRIES = 10_000
_MOST_LOOKED_AT = 1_000  # for second names, in each place
_MOST_LINES = 10
_DO_NOT_USE = "do not use it"


class _Entry:
    """What a file, link or folder was."""

    __slots__ = ("changed_ns", "content", "mode", "owner")

    def __init__(self, found: os.stat_result, content: bytes | None) -> None:
        self.mode = found.st_mode
        self.owner = found.st_uid, found.st_gid
        self.content = content  # of a file, or where a link leads; None if it is too large, or a folder
        self.changed_ns = found.st_ctime_ns

    def is_like(self, found: os.stat_result, path: str) -> bool:
        if self.mode != found.st_mode:
            return False
        if self.content is not None:
            return _read(path, found.st_mode, len(self.content) + 1) == self.content
        return stat.S_ISDIR(self.mode) or self.changed_ns == found.st_ctime_ns


class HeldPlaces:
    """Paths, each with the folder that it is shared in, as they are before the command starts.

    The paths have no links on the way below their folder. Of `folders` it matters only that they are the same.
    """

    def __init__(self, places: Iterable[tuple[str, str]], folders: Iterable[tuple[str, str]] = ()) -> None:
        places, folders = list(places), list(folders)
        self._left_bytes, self._left_entries = _MAX_BYTES, _MAX_ENTRIES
        self._descriptors: list[tuple[str, int]] = []
        self._roots = {root: open_without_links(root) for root in {root for root, _ in (*places, *folders)}}
        on_way = {step for root, path in (*places, *folders) for step in _steps(root, path)}
        for path in sorted(on_way, key=lambda path: (path.count("/"), path)):  # folders before what is in them
            try:
                self._descriptors.append((path, os.open(path, _HERE)))
            except FileNotFoundError:
                continue
        self._trees = {path: self._copy(path) for _, path in places if os.path.lexists(path)}

    def _copy(self, top: str) -> dict[str, _Entry]:
        copied = {}
        for path, found in _walk(top):
            self._left_entries -= 1
            if self._left_entries < 0:
                break
            content = _read(path, found.st_mode, min(found.st_size, self._left_bytes) + 1)
            if content is not None and len(content) > min(found.st_size, self._left_bytes):
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
        more = [f"and {len(said) - _MOST_LINES} more of the kind"] if len(said) > _MOST_LINES else []
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
        root = max((root for root in self._roots if path.startswith(f"{root}/")), key=len, default="")
        if not root:
            raise FileNotFoundError(errno.ENOENT, "it is in no folder that is shared")
        *way, name = path[len(root) + 1 :].split("/")
        folders: list[tuple[int, int]] = []
        try:
            folders.append(_unlock(os.dup(self._roots[root])))
            for step in way:
                folders.append(_unlock(os.open(step, _FOLDER, dir_fd=folders[-1][0])))
            yield f"/proc/self/fd/{folders[-1][0]}/{name}"
        finally:
            for folder, mode in reversed(folders):
                if mode >= 0:
                    os.chmod(f"/proc/self/fd/{folder}", mode)
                os.close(folder)

    def _put_back(self, path: str, descriptor: int) -> str:
        """By another name it is the same. Nothing to say if it is still there."""
        try:
            with self._at(path) as here:
                if _is_it(here, descriptor):
                    return ""
                other = _set_aside(here)
                where = os.readlink(f"/proc/self/fd/{descriptor}")
                with suppress(FileNotFoundError, NotADirectoryError), self._at(where) as there:
                    if _is_it(there, descriptor):
                        os.rename(there, here)
                        return f"{_shown(path)} was moved to {_shown(where)}, and is back{_name_other(path, other)}"
        except OSError as error:
            return _say_failure(path, error)
        return f"{_shown(path)} was removed{_name_other(path, other)}"

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
                other = _set_aside(here)
        except FileNotFoundError:
            return ""  # its folder has been set aside
        except OSError as error:
            return _say_failure(path, error)
        return f"{_shown(path)} was made{_name_other(path, other)}" if other else ""

    def _restore(self, path: str, entry: _Entry) -> str:
        """What is missing or changed is written again."""
        try:
            with self._at(path) as here:
                return _restore(path, here, entry)
        except OSError as error:
            return _say_failure(path, error)


def _unlock(folder: int) -> tuple[int, int]:
    """With the mode that it had; -1 if that is still so."""
    found = os.fstat(folder)
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IRWXU == stat.S_IRWXU or found.st_uid != os.geteuid():
        return folder, -1
    os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)
    return folder, mode


def has_second_name(path: str) -> bool:
    """Of a file, or of one in a folder: can it be reached by a way that no mount is on?"""
    return any(stat.S_ISREG(found.st_mode) and found.st_nlink > 1 for _, found in islice(_walk(path), _MOST_LOOKED_AT))


def _steps(root: str, path: str) -> list[str]:
    """The path, and each folder between it and the one that is shared."""
    found = []
    while path != root and len(path) > len(root):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """It and all in it, folders first. No link is followed."""
    waiting = deque([top])
    while waiting:
        path = waiting.popleft()
        names: list[str] = []
        try:
            found = os.lstat(path)
            with suppress(PermissionError):  # it is there all the same
                names = sorted(os.listdir(path)) if stat.S_ISDIR(found.st_mode) else []
        except OSError:
            continue  # gone
        yield path, found
        waiting += [f"{path}/{name}" for name in names]


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
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def _restore(path: str, here: str, entry: _Entry) -> str:
    with suppress(OSError):  # gone
        if entry.is_like(os.lstat(here), here):
            return ""
    if entry.content is None and not stat.S_ISDIR(entry.mode):
        return f"{_shown(path)} may have been changed, and there is no copy of it: look at it before you use it"
    other = _set_aside(here)
    if stat.S_ISLNK(entry.mode):
        os.symlink(os.fsdecode(entry.content or b""), here)
    elif stat.S_ISDIR(entry.mode):
        os.mkdir(here)
        os.chmod(here, stat.S_IMODE(entry.mode))
    else:
        descriptor = os.open(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(entry.content or b"")
            os.fchmod(descriptor, stat.S_IMODE(entry.mode))
    if os.geteuid() == 0:
        os.chown(here, *entry.owner, follow_symlinks=False)
    return f"{_shown(path)} was changed, and is as it was{_name_other(path, other)}"


def _set_aside(here: str) -> str:
    """Give whatever is there another name, where no program looks for it. Its end; empty if nothing is there."""
    if not os.path.lexists(here):
        return ""
    # The second cannot be guessed, so the command cannot have taken it.
    end = _BLOCKED if not os.path.lexists(f"{here}{_BLOCKED}") else f"{_BLOCKED}-{os.urandom(4).hex()}"
    os.rename(here, f"{here}{end}")
    return end


def _name_other(path: str, end: str) -> str:
    return f"; what the command left there is {_shown(path)}{end}" if end else ""


def _say_failure(path: str, error: OSError) -> str:
    return f"{_shown(path)} was changed, and cannot be put back ({error.strerror}): {_DO_NOT_USE}"


def _shown(path: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in path)
