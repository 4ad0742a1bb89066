"""A layer on disk, for kernels on which an ordinary user cannot have it in memory (before Linux 6.6).

It is a folder among exeat's own, gone when the run is over; what a run left that was killed, the next one removes.
The kernel does not bound it, so the runner looks at its size now and then.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import Final

from exeat.errors import JailError
from exeat.sandbox.home import open_home, state_home

_ALL: Final = "running"
_FIRST_WITH_ATTRIBUTES: Final = (6, 6)
LOOK_EVERY_S: Final = 2.0


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
        home = open_home(create=True)
        assert home is not None
        os.close(home)
        self._limit = limit
        folder = f"{state_home()}/{_ALL}"
        self.path = f"{folder}/{os.getpid()}-{os.urandom(4).hex()}"
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            _remove_abandoned(folder)
            os.mkdir(self.path, 0o700)
            # Held as long as this process lives: whoever gets the lock knows that the run is over.
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise JailError("there is no place for what the command writes", detail=str(error)) from None

    def is_full(self) -> bool:
        """Has the command written more than it may?"""
        total = 0
        for folder, _, names in os.walk(f"{self.path}/upper"):
            for name in names:
                try:
                    total += os.stat(f"{folder}/{name}", follow_symlinks=False).st_blocks * 512
                except OSError:
                    continue  # removed meanwhile
            if total > self._limit:
                return True
        return False

    def remove(self) -> None:
        _remove(self.path)
        os.close(self._lock)


def _remove_abandoned(folder: str) -> None:
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # in use
        else:
            _remove(path)
        finally:
            os.close(descriptor)


def _remove(path: str) -> None:
    """Also what the command, or the overlay, has closed to its owner."""
    for folder, names, _ in os.walk(path):
        for name in names:
            if not os.path.islink(f"{folder}/{name}"):
                os.chmod(f"{folder}/{name}", 0o700)
    shutil.rmtree(path, ignore_errors=True)
