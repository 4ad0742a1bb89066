"""Folders of the machine over which an engine of the tests has memory of its own, as long as it is there."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_SLAVE, _MS_BIND, _MNT_DETACH = 0x4000, 0x80000, 0x1000, 2
_OURS = "trusted.exeat-tests"  # an attribute of folders that we have made
_libc = ctypes.CDLL(None, use_errno=True)


def take_own_mounts() -> None:
    """For this process and all that it starts: what is mounted from here on the machine does not see."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None))


def cover(name: str, with_this: Path) -> None:
    """A folder by another one. Only in a view of one's own."""
    _check(_libc.mount(bytes(with_this), name.encode(), None, _MS_BIND, None))


class Covers:
    """One that is not there is made, and removed by the last who covers it.

    No sooner: with a folder the kernel removes what is mounted there, also in the views of others.
    """

    def __init__(self, folders: Sequence[str], shared: str = "/run") -> None:
        """`shared` is a folder for the lock of all who have the same folders."""
        self._folders = folders
        self._mounted: list[str] = []
        self._lock = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def mount(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        for name in self._folders:
            with contextlib.suppress(FileExistsError):
                Path(name).mkdir(parents=True)
                with contextlib.suppress(OSError):  # then it stays
                    os.setxattr(name, _OURS, b"")
            _check(_libc.mount(b"tmpfs", name.encode(), b"tmpfs", 0, None))
            self._mounted.append(name)

    def remove(self) -> None:
        """Nothing may use them any more. May be called whatever became of `mount`."""
        for name in self._mounted:
            _libc.umount2(name.encode(), _MNT_DETACH)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in self._folders:
                with contextlib.suppress(OSError):  # it was there before, or something is in it
                    os.getxattr(name, _OURS)
                    Path(name).rmdir()
        os.close(self._lock)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
