"""A layer on disk, for kernels on which an ordinary user cannot have it in memory (before Linux 6.6).

It is a folder among exeat's own, gone when the run is over; what a run left that was killed, the next one removes.
The kernel does not bound it, so the runner looks now and then: at how much less is free, which takes no time, and then
at what the command has written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from typing import Final

from exeat.errors import JailError
from exeat.jail.files.trees import can_be_marked
from exeat.paths import DIRECTORY, opened
from exeat.sandbox.home import make_home, state_home

_ALL: Final = "running"
_FIRST_WITH_ATTRIBUTES: Final = (6, 6)
LOOK_EVERY_S: Final = 1.0
_MOST_COUNTED: Final = 200_000  # files; more than these are not looked at one by one
_DEEPEST: Final = 500  # each folder on the way is an open file, and before Python 3.13 a call as well
_ALWAYS_LEFT: Final = 256 << 20  # of the disk, for all others
_LEAST: Final = 1 << 20


def needs_disk() -> bool:
    """Is a tmpfs of this kernel's without the attributes that an ordinary user's overlay needs?"""
    if os.geteuid() == 0:
        return False
    major, minor, *_ = (*os.uname().release.split("."), "0")
    digits = "".join(char for char in minor if char.isdigit())
    return (int(major), int(digits or 0)) < _FIRST_WITH_ATTRIBUTES


class DiskLayer:
    """An empty folder for one run. Raises ConfigError or JailError if there can be none."""

    def __init__(self, limit: int) -> None:
        make_home()
        self._name = name = f"{os.getpid()}-{os.urandom(4).hex()}"
        everything = f"{state_home()}/{_ALL}"
        self.path = f"{everything}/{name}"
        try:
            os.makedirs(everything, 0o700, exist_ok=True)
            self._all = os.open(everything, DIRECTORY)
            fcntl.flock(self._all, fcntl.LOCK_EX)  # no run takes the new folder for one that was left
            _remove_abandoned(self._all)
            os.mkdir(name, 0o700, dir_fd=self._all)
            # Held as long as this process lives: whoever gets the lock knows that the run is over.
            self._own = os.open(name, DIRECTORY, dir_fd=self._all)
            fcntl.flock(self._own, fcntl.LOCK_EX)
            fcntl.flock(self._all, fcntl.LOCK_UN)
            self._free = _free(self._own)
            if not can_be_marked(self._own):
                raise OSError(errno.EOPNOTSUPP, "no attributes there")
        except OSError as error:
            raise JailError(
                "there is no room for what the command writes",
                detail=f"{self.path}: {error.strerror}",
                fix="EXEAT_HOME names another folder, on a disk of this machine (ext4, xfs or btrfs)",
            ) from None
        self._limit = min(limit, self._free - _ALWAYS_LEFT)
        self._next_look = 0.0
        if self._limit < _LEAST:
            self.remove()
            raise JailError("there is no room for what the command writes", detail=f"the disk of {self.path} is full")

    def is_full(self) -> bool:
        """Has the command written more than it may? To be asked often."""
        free = _free(self._own)
        if self._free - free <= self._limit:
            return False
        if free < _ALWAYS_LEFT:
            return True
        began = time.monotonic()
        if began < self._next_look:
            return False
        is_full = _takes_more(self._own, "upper", self._limit)
        self._next_look = time.monotonic() + 20 * (time.monotonic() - began)  # it may be others who fill the disk
        return is_full

    def remove(self) -> None:
        """With all that is in it. What cannot be removed, the next run tries again."""
        with suppress(OSError):
            _remove(self._all, self._name)
        os.close(self._own)
        os.close(self._all)


def _free(descriptor: int) -> int:
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize


def _takes_more(within: int, name: str, limit: int) -> bool:
    """Also if that cannot be found out: the command may have closed a folder, or made too many, or too deep ones."""
    total = count = 0
    try:
        for path, inner, names, folder in os.fwalk(name, dir_fd=within, onerror=_fail):
            count += len(inner)
            for each in names:
                count += 1
                with suppress(FileNotFoundError):  # removed meanwhile
                    total += os.stat(each, dir_fd=folder, follow_symlinks=False).st_blocks * 512
            if total > limit or count > _MOST_COUNTED or path.count("/") > _DEEPEST:
                return True
    except (OSError, RecursionError):
        return True
    return False


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _remove_abandoned(everything: int) -> None:
    for name in os.listdir(everything):
        with suppress(OSError), opened(name, within=everything) as descriptor:  # in use, or not to be removed
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(everything, name)


def _remove(within: int, name: str) -> None:
    """However deep it is: folders in folders are brought up first. Also what is closed to its owner."""
    with opened(name, within=within) as top:
        moved, mark = 0, os.urandom(4).hex()
        while folders := _clear(top):
            for each in folders:
                with opened(each, within=top) as folder:
                    for inner in _clear(folder):
                        moved += 1
                        os.rename(inner, f"{mark}.{moved}", src_dir_fd=folder, dst_dir_fd=top)
                os.rmdir(each, dir_fd=top)
    os.rmdir(name, dir_fd=within)


def _clear(folder: int) -> list[str]:
    """Remove all but folders, and return their names. They are open to their owner then."""
    inner = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)  # to move it changes its own entry ..
            inner.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return inner
