"""The run's audit log as files: made before the jail is built, so that they can be hidden, and the same until the end.

What is made later could not be hidden in time. So the file that the log goes on in when it is full is made first, and
`exeat.audit.rotate` never makes another. It goes again if it was not needed and no other run counts on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import time

from exeat.errors import StartError, log_not_opened
from exeat.run.outcome import say

_STREAMS = ("-", "/dev/stdout", "/dev/stderr")
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_TRIES = 100
_DISCARD_TRIES = 30
_RETRY_S = 0.01


class RunLog:
    """Makes the files if there are none. Refuses those that the command could reach by another name.

    `spares`: how many there are to go on in. Made before the gateway's process is forked, which then holds them.
    """

    def __init__(self, path: str | None, spares: int = 0) -> None:
        self._path = path if path not in _STREAMS else None
        self._made: list[str] = []
        self._is_over = False
        self._held: list[int] = []
        self._identities: set[tuple[int, int]] = set()
        self.files: list[str] = []  # to be hidden: all files of the log, older ones as well
        if self._path is None:
            return
        try:
            found = self._hold(self._path)
            self.files.append(self._path)
            self._accept(self._path, found)
            if stat.S_ISREG(found.st_mode):
                self._hold_spares(self._path, spares)
        except OSError as error:
            self.discard()
            raise log_not_opened(self._path, error) from None
        except StartError:
            self.discard()
            raise

    def is_forked(self) -> None:
        """The gateway's process has its own hold of the files now; the command must not get ours."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def discard(self) -> None:
        """There was no run: leave no empty log behind that was not there before.

        Who has made one to go on in may have left before us, and could not remove it.
        """
        self.is_forked()
        if not self._is_over:
            self._remove_unused(list(dict.fromkeys((*self._made, *self._spares))), tries=_DISCARD_TRIES)

    def finish(self) -> None:
        """The run is over. Say so if the log has another name now, and remove what was not needed.

        Not waiting for jails that were made ahead, which count on it: the last one to leave removes it.
        """
        self._is_over = True
        if self._path is None:
            return
        found = self._look(self._path)
        if found is None or (found.st_dev, found.st_ino) not in self._identities:
            say(f"the audit log is no longer at {self._path}: it was moved while the command ran")
        self._remove_unused(self._spares)

    @property
    def _spares(self) -> list[str]:
        """And older ones, which are not empty."""
        return [each for each in self.files if each != self._path]

    def _look(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except FileNotFoundError:
            return None

    def _make(self, path: str) -> os.stat_result:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._made.append(path)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _hold(self, path: str) -> os.stat_result:
        """Have a log there that no other run removes. Raises OSError."""
        for _ in range(_TRIES):
            try:
                found = self._look(path) or self._make(path)
            except FileExistsError:
                continue  # another run has just made it
            if not stat.S_ISREG(found.st_mode):
                return found
            try:
                descriptor = os.open(path, _READ)
            except FileNotFoundError:
                continue
            except PermissionError:
                return found  # who removes one has to read it, too
            try:
                _lock(descriptor, fcntl.F_RDLCK)
                if os.path.samestat(found, os.fstat(descriptor)) and os.path.samestat(found, os.lstat(path)):
                    self._held.append(descriptor)
                    return found
            except (BlockingIOError, FileNotFoundError):
                time.sleep(_RETRY_S)  # someone is about to remove it
            except OSError:
                self._held.append(descriptor)  # a file system without locks
                return found
            os.close(descriptor)
        raise OSError(errno.EAGAIN, f"{path} keeps being removed")

    def _accept(self, path: str, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StartError(
                f"the audit log {path!r} has a second name (a hard link), by which the command could reach it",
                detail="name another file, or remove the other name",
            )
        self._identities.add((found.st_dev, found.st_ino))

    def _hold_spares(self, path: str, spares: int) -> None:
        for number in range(1, spares + 1):
            name = f"{path}.{number}"
            if self._look(name) is None:
                self._made.append(name)
                if not _may_make_files(path):
                    break  # the log does not rotate then, and says so when it would
            descriptor = _open_held(name)
            self._held.append(descriptor)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise StartError(f"{name!r}, in which the audit log goes on when it is full, is not a file of yours")
            self._accept(name, found)
            self.files.append(name)
        folder, slash, own = path.rpartition("/")
        for other in os.listdir(folder or ("/" if slash else ".")):
            digits = other[len(own) + 1 :] if other.startswith(f"{own}.") else ""
            if digits.isascii() and digits.isdigit() and (older := f"{folder}{slash}{other}") not in self.files:
                self.files.append(older)

    def _remove_unused(self, paths: list[str], *, tries: int = 1) -> None:
        """But for what another run holds, which may be about to leave as well."""
        for path in paths:
            found = self._look(path)
            if found is None or not stat.S_ISREG(found.st_mode) or found.st_size:
                continue
            try:
                descriptor = os.open(path, _OPEN & ~os.O_CREAT)
            except OSError:
                continue  # it is not where it was, so it is not ours to remove
            try:
                _lock(descriptor, fcntl.F_WRLCK, tries)
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)) and os.fstat(descriptor).st_size == 0:
                    os.unlink(path)
            except OSError:
                continue
            finally:
                os.close(descriptor)


def _may_make_files(path: str) -> bool:
    return os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK, effective_ids=True)


def _open_held(name: str) -> int:
    """Open it, made if need be, so that no other run removes it as long as the descriptor or a copy of it is open."""
    for _ in range(_TRIES):
        descriptor = os.open(name, _OPEN, 0o600)
        try:
            _lock(descriptor, fcntl.F_RDLCK)
            if os.path.samestat(os.fstat(descriptor), os.lstat(name)):
                return descriptor
        except (BlockingIOError, PermissionError, FileNotFoundError):
            time.sleep(_RETRY_S)  # someone is about to remove it
        os.close(descriptor)
    raise OSError(errno.EAGAIN, f"{name} keeps being removed")


def _lock(descriptor: int, kind: int, tries: int = 1) -> None:
    """One of the open file, which a fork shares; the writers' own (flock) is another matter. Raises OSError."""
    if sys.platform != "linux":
        return
    for left in reversed(range(tries)):
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_RETRY_S)
        else:
            return
