"""A layer on disk, for kernels on which an ordinary user cannot have it in memory (before Linux 6.6).

It is a folder among exeat's own, gone when the run is over; what a run left that was killed, the next one removes.
The kernel does not bound it, so the runner looks now and then: at how much less is free, which takes no time, and then
at what the command has written.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import Final

from exeat.errors import JailError
from exeat.jail.files.trees import can_be_marked
from exeat.sandbox.home import state_home
from exeat.sandbox.run_folder import RunFolder

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
        try:
            self._folder = RunFolder()
            self.path, self._own = self._folder.path, self._folder.descriptor
            self._free = _free(self._own)
            if not can_be_marked(self._own):
                self.remove()
                raise OSError(errno.EOPNOTSUPP, "no extended attributes there", self.path)
        except OSError as error:
            raise JailError(
                "there is no disk space for the command's files",
                detail=f"{error.filename or state_home()}: {error.strerror}",
                fix="EXEAT_HOME names another folder, on a disk of this machine (ext4, xfs or btrfs)",
            ) from None
        self._limit = min(limit, self._free - _ALWAYS_LEFT)
        self._next_look = 0.0
        if self._limit < _LEAST:
            self.remove()
            raise JailError("there is no disk space for the command's files", detail=f"the disk of {self.path} is full")

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
        self._folder.remove()


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
