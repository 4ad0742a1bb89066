"""A folder for one run among exeat's own: removed after the run. The next run removes those of killed runs."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from typing import Final

from exeat.paths import DIRECTORY, opened
from exeat.sandbox.home import make_home, state_home

_ALL: Final = "running"


class RunFolder:
    """Empty at first, and open to its owner only. Raises ConfigError, or OSError with its path."""

    def __init__(self) -> None:
        make_home()
        self._name = name = f"{os.getpid()}-{os.urandom(4).hex()}"
        everything = f"{state_home()}/{_ALL}"
        self.path = f"{everything}/{name}"
        os.makedirs(everything, 0o700, exist_ok=True)
        self._all = os.open(everything, DIRECTORY)
        self.descriptor = -1
        try:
            fcntl.flock(self._all, fcntl.LOCK_EX)  # no run takes the new folder for one that was left
            _remove_abandoned(self._all)
            os.mkdir(name, 0o700, dir_fd=self._all)
            # Held as long as this process lives: a process that gets the lock knows that the run is over.
            self.descriptor = os.open(name, DIRECTORY, dir_fd=self._all)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            fcntl.flock(self._all, fcntl.LOCK_UN)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """With all that is in it. What cannot be removed, the next run tries again. May be called more than once."""
        if self._all < 0:
            return
        if self.descriptor >= 0:
            with suppress(OSError):
                _remove(self._all, self._name)
            os.close(self.descriptor)
        os.close(self._all)
        self._all = self.descriptor = -1


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
