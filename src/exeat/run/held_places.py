"""With `--nest`, what is held in shared folders is compared with a copy when the command is over, and put back.

Otherwise mounts hold it: they are read-only, and what is a mount point cannot be renamed. A program with a mount
namespace of its own can take all mounts away there, and then rename and change it. So this is for what must not be
changed, and never for what must be hidden.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

_BLOCKED = ".exeat-blocked"
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NAMES = 100
_MAX_BYTES = 16 << 20  # of copies, in all
_MAX_ENTRIES = 10_000
_MOST_LINES = 10


class _Entry:
    """What a file, link or folder was."""

    __slots__ = ("changed_ns", "content", "mode")

    def __init__(self, found: os.stat_result, content: bytes | None) -> None:
        self.mode = found.st_mode
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

    The paths have no links on the way below their folder.
    """

    def __init__(self, places: Iterable[tuple[str, str]]) -> None:
        places = list(places)
        self._left_bytes, self._left_entries = _MAX_BYTES, _MAX_ENTRIES
        self._descriptors: list[tuple[str, int]] = []
        on_way = {step for root, path in places for step in _steps(root, path)}
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
        said = [_put_back(path, descriptor) for path, descriptor in self._descriptors]
        for top, tree in self._trees.items():
            said += _mend(top, tree, is_whole=self._left_entries >= 0)
        said = [line for line in said if line]
        more = [f"and {len(said) - _MOST_LINES} more of the kind"] if len(said) > _MOST_LINES else []
        return [*said[:_MOST_LINES], *more]

    def close(self) -> None:
        for _, descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def _steps(root: str, path: str) -> list[str]:
    """The path, and each folder between it and the one that is shared."""
    found = []
    while path != root and len(path) > len(root):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """It and all in it, folders first. No link is followed."""
    waiting = [top]
    while waiting:
        path = waiting.pop(0)
        try:
            found = os.lstat(path)
            names = sorted(os.listdir(path)) if stat.S_ISDIR(found.st_mode) else []
        except OSError:
            continue  # not ours to read, or gone
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


def _put_back(path: str, descriptor: int) -> str:
    """By another name it is the same. Nothing to say if it is still there."""
    if _is_it(path, descriptor):
        return ""
    try:
        other = _set_aside(path)
        where = os.readlink(f"/proc/self/fd/{descriptor}")
        if _is_it(where, descriptor):
            os.rename(where, path)
            return f"{_shown(path)} was moved to {_shown(where)}, and is back{_name_other(other)}"
    except OSError as error:
        return _say_failure(path, error)
    return f"{_shown(path)} was removed{_name_other(other)}"


def _is_it(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def _mend(top: str, tree: dict[str, _Entry], *, is_whole: bool) -> list[str]:
    """Make it what it was: what is new gets another name, what is missing or changed is written again."""
    new = [path for path, _ in _walk(top) if path not in tree] if is_whole else []
    return [*map(_block, new), *(_restore(path, entry) for path, entry in tree.items())]


def _block(path: str) -> str:
    try:
        other = _set_aside(path)
    except OSError as error:
        return _say_failure(path, error)
    return f"{_shown(path)} was made{_name_other(other)}" if other else ""  # else its folder has been set aside


def _restore(path: str, entry: _Entry) -> str:
    try:
        if entry.is_like(os.lstat(path), path):
            return ""
    except OSError:
        pass  # gone
    if entry.content is None and not stat.S_ISDIR(entry.mode):
        return f"{_shown(path)} may have been changed, and there is no copy of it: look at it before you use it"
    try:
        other = _set_aside(path)
        if stat.S_ISDIR(entry.mode):
            os.mkdir(path)
        elif stat.S_ISLNK(entry.mode):
            os.symlink(os.fsdecode(entry.content or b""), path)
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(entry.content or b"")
        if not stat.S_ISLNK(entry.mode):
            os.chmod(path, stat.S_IMODE(entry.mode))
    except OSError as error:
        return _say_failure(path, error)
    return f"{_shown(path)} was changed, and is as it was{_name_other(other)}"


def _set_aside(path: str) -> str:
    """Give whatever is there another name, where no program looks for it. Empty if nothing is there."""
    if not os.path.lexists(path):
        return ""
    for number in range(1, _MOST_NAMES):
        name = f"{path}{_BLOCKED}{'' if number == 1 else number}"
        if not os.path.lexists(name):
            os.rename(path, name)
            return name
    raise OSError(0, "too many of the kind")


def _name_other(path: str) -> str:
    return f"; what the command left there is {_shown(path)}" if path else ""


def _say_failure(path: str, error: OSError) -> str:
    return f"{_shown(path)} was changed, and cannot be put back ({error.strerror}): do not use it"


def _shown(path: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in path)
