"""The run's audit log as a file: there before the jail is built, so that it can be hidden, and the same at the end."""

from __future__ import annotations

import os
import stat

from exeat.errors import StartError
from exeat.run.summary import say

_STREAMS = ("-", "/dev/stdout", "/dev/stderr")


class RunLog:
    """Makes the file if there is none. Refuses one that the command could reach by another name."""

    def __init__(self, path: str | None) -> None:
        self._path = path if path not in _STREAMS else None
        self._identity = (0, 0)
        self._is_new = False
        if self._path is None:
            return
        try:
            found = self._look() or self._make()
        except OSError as error:
            raise StartError(f"cannot open the audit log {path!r}: {error.strerror}") from None
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StartError(
                f"the audit log {path!r} has a second name (a hard link), by which the command could reach it",
                detail="name another file, or remove the other name",
            )
        self._identity = (found.st_dev, found.st_ino)

    def _look(self) -> os.stat_result | None:
        assert self._path is not None
        try:
            return os.lstat(self._path)
        except FileNotFoundError:
            return None

    def _make(self) -> os.stat_result:
        assert self._path is not None
        descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._is_new = True
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """There was no run: leave no empty log behind that was not there before."""
        found = self._look() if self._path is not None and self._is_new else None
        if self._path is not None and found is not None and found.st_size == 0:
            os.unlink(self._path)

    def check(self) -> None:
        """The gateway wrote to the file that it had opened. Say so if that has another name now."""
        if self._path is None:
            return
        found = self._look()
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            say(f"the audit log is no longer at {self._path}: it was moved while the command ran")
