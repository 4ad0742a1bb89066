"""Rotation of a full log: two ways to continue in another file without a moment in which the log's name is free.

If the name were free, a process that starts just then would create the file and begin a chain of its
own, and renaming ours over it would lose its lines. So the old file first gets a second name, and the new
one then replaces it in a single step (`begin_next`).

A log within reach of the command that it is about takes another way (`FilePool`). A jail hides files by mounts over
them. Such a mount goes with a file when that is renamed, and a file that is made later has none. So no file is made or
removed while the command runs: the oldest file is emptied and takes the place of the newest, by exchanging names. A
crash between two steps loses nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import suppress

from exeat.audit.parts import rotated_numbers

_NEW = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_OLD = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_RENAME_EXCHANGE = 2  # renameat2(2), Linux 3.15

Identity = tuple[int, int]


def begin_next(path: str, line: bytes, keep: int) -> int:
    """A new file with this line, in the place of the log, locked. The caller has the log's lock. Raises OSError.

    The log becomes `.1`, and at most `keep` older files stay. Needs a file system with hard links.
    """
    fresh = f"{path}.next"
    _remove(fresh)  # left by a crash: the holder of the lock owns this name
    descriptor = os.open(fresh, _NEW, 0o600)
    try:
        _write_first(descriptor, line)
        _shift(path, keep)
        os.replace(fresh, path)
    except BaseException:
        os.close(descriptor)
        _remove(fresh)
        raise
    return descriptor


def _shift(path: str, keep: int) -> None:
    """Give the log the number 1 as a second name, after all older files have moved one number up."""
    first = f"{path}.1"
    if os.path.exists(first) and os.path.samefile(first, path):
        return  # a crash before the last step of a rotation left both names
    for number in reversed(rotated_numbers(path)):
        if number >= keep:
            os.unlink(f"{path}.{number}")
        else:
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.link(path, first)


def _write_first(descriptor: int, line: bytes) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


class FilePool:
    """`path` and as many numbered files next to it as there are, up to `keep`. The folder is held, not its name."""

    def __init__(self, path: str, keep: int) -> None:
        folder, slash, name = path.rpartition("/")
        self._folder = os.open(folder or ("/" if slash else "."), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._names = [name]
        for number in range(1, keep + 1):
            if self._look(f"{name}.{number}") is None:
                break
            self._names.append(f"{name}.{number}")
        self._known = {found for each in self._names if (found := self._look(each)) is not None}

    def close(self) -> None:
        os.close(self._folder)

    def moved_to(self, identity: Identity) -> int:
        """The file that has the log's name now, opened, if it is another one of ours than `identity`; else -1."""
        found = self._look(self._names[0])
        if found is None or found == identity or found not in self._known:
            return -1
        return os.open(self._names[0], _OLD, dir_fd=self._folder)

    def begin_next(self, line: bytes) -> int:
        """The oldest file, with nothing but this line, in the place of the log, locked. The caller has the log's lock.

        Raises OSError, and then the log is where it was.
        """
        descriptor = self._open_oldest()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)  # it may still be in use, and keeps what it has
            raise
        try:
            _write_first(descriptor, line)
            for number in reversed(range(1, len(self._names))):
                self._exchange(self._names[number - 1], self._names[number])
        except BaseException:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
            raise
        return descriptor

    def _open_oldest(self) -> int:
        if len(self._names) < 2:
            raise OSError(errno.ENOENT, "there is no second file to continue in")
        for name in self._names:
            if self._look(name) not in self._known:
                raise OSError(errno.ESTALE, f"{name} was moved or replaced")
        descriptor = os.open(self._names[-1], _OLD, dir_fd=self._folder)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) not in self._known:
            os.close(descriptor)
            raise OSError(errno.ESTALE, f"{self._names[-1]} was moved or replaced")
        return descriptor

    def _exchange(self, one: str, other: str) -> None:
        call = getattr(self._libc, "renameat2", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if call(self._folder, os.fsencode(one), self._folder, os.fsencode(other), _RENAME_EXCHANGE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _look(self, name: str) -> Identity | None:
        try:
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino
