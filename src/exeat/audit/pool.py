"""The files of a log that lies in reach of what it is about: all there from the start, rotated by exchanging names.

A jail hides files by mounts over them. Such a mount goes with a file when that is renamed, and a file that is made
later has none. So a log of a run never makes or removes a file while the command runs: the oldest of its files is
emptied and takes the place of the newest. No name is ever free, so nothing can be put there, and a crash between two
steps loses nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

_RENAME_EXCHANGE = 2  # renameat2(2), Linux 3.15
_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

Identity = tuple[int, int]


class FilePool:
    """`path` and as many numbered files beside it as there are, up to `keep`. The folder is held, not its name."""

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
        return os.open(self._names[0], _OPEN_FLAGS, dir_fd=self._folder)

    def begin_next(self, line: bytes) -> int:
        """The oldest file, with nothing but this line, in the place of the log, locked. The caller has the log's lock.

        Raises OSError, and then the log is where it was.
        """
        descriptor = self._open_oldest()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                for number in reversed(range(1, len(self._names))):
                    self._exchange(self._names[number - 1], self._names[number])
            except BaseException:
                os.ftruncate(descriptor, 0)
                raise
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open_oldest(self) -> int:
        if len(self._names) < 2:
            raise OSError(errno.ENOENT, "there is no second file to go on in")
        for name in self._names:
            if self._look(name) not in self._known:
                raise OSError(errno.ESTALE, f"{name} was moved or replaced")
        descriptor = os.open(self._names[-1], _OPEN_FLAGS, dir_fd=self._folder)
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
