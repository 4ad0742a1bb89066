"""The log as a regular file that several processes may append to.

One chain per file, whoever writes. Every batch is written under `flock`, after a look at the file: if
it is longer than we left it, its last line tells where the chain stands; if another file has taken its
name, we follow. Evidence is never deleted: half a line that a crash left is closed off and told of.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

from exeat.audit.chain import GENESIS, seal_lines
from exeat.audit.record import encode_event
from exeat.audit.rotate import shift_and_replace
from exeat.audit.sink import ContendedError, new_chain, torn_event
from exeat.audit.tail import Tail, read_tail

_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_LOCK_WAIT_S = 5.0
_LOCK_RETRY_S = 0.0005
# Another process holds the lock for some 20 us. Trying again that long is cheaper than a thread.
_LOCK_SPINS = 20
_MOVES = 16


class LogFile:
    """A sink on a regular file. Holds the file open, but the lock only while it writes."""

    inline = True

    def __init__(self, path: str, *, max_bytes: int, keep: int) -> None:
        self.seq = 0
        self.head = GENESIS
        self.suffix = ""
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._chain = ""
        self._size = -1  # As we left it; unknown at first.
        self._left = (0, GENESIS)
        self._rotate_at = max_bytes
        self._fd, self._identity = _open(path)
        try:
            # Shows now, and not at the first request, whether this is a log that can be continued.
            self._lock(wait=True)
            self._learn_end()
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
        self._lock(wait=wait)
        try:
            before = b""
            repairs: list[str] = []
            rotated: list[bytes] = []
            size = os.fstat(self._fd).st_size
            if size != self._size or size == 0:
                before, repairs = self._catch_up(size)
            if self._max_bytes and size >= self._rotate_at and not (before or repairs):
                rotated, repairs = self._rotate(size)
                size = size if repairs else self._size
            if repairs:
                bodies = [event + self.suffix for event in repairs] + bodies
            lines, head = seal_lines(bodies, self._chain, self.seq, self.head)
            self._put(before + b"".join(lines), size)
            self.seq += len(lines)
            self.head = head
            self._left = (self.seq, self.head)
            return rotated + lines
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def interrupt(self) -> None:
        """Waiting for the lock has a bound of its own."""

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self, *, wait: bool) -> None:
        """Take the lock of the file that has our name now, and hold it on return."""
        for _ in range(_MOVES):
            _acquire(self._fd, wait=wait)
            try:
                # os.stat and not Path.lstat: 0.5 us less, for every batch.
                found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116
                if (found.st_dev, found.st_ino) == self._identity:
                    return
            except FileNotFoundError:
                pass
            except BaseException:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                raise
            self._follow()
        raise OSError(errno.EAGAIN, "the file is being replaced all the time")

    def _follow(self) -> None:
        """Leave a file that was moved away, with the lock held so that its end is the end."""
        try:
            self._learn_end()
            fd, identity = _open(self._path)
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            raise
        os.close(self._fd)
        self._fd, self._identity = fd, identity
        self._size = -1
        self._rotate_at = self._max_bytes

    def _learn_end(self) -> None:
        size = os.fstat(self._fd).st_size
        if size not in (0, self._size):
            self._read_end(size)

    def _read_end(self, size: int) -> Tail:
        tail = read_tail(self._fd, size)
        if tail is None:
            raise OSError(errno.EINVAL, "the file holds something that is not an audit log")
        self.seq, self._chain, self.head = tail.seq, tail.chain, tail.head
        return tail

    def _catch_up(self, size: int) -> tuple[bytes, list[str]]:
        """Learn where the chain stands. Returns what must be written first: bytes, then events.

        Changes nothing by which a second call, after a write that failed, would come to another result.
        """
        if size == 0:
            self._chain = self._chain or new_chain("f")
            # Emptied or moved away by others while we ran: the chain goes on, and says so.
            return b"", [encode_event("rotate", previous=self.head)] if self.seq else []
        tail = self._read_end(size)
        self._chain = self._chain or new_chain("f")
        repairs = []
        before = b"\n" if tail.unended else b""
        if tail.junk.endswith(b"\n"):
            repairs.append(encode_event("foreign", bytes=len(tail.junk)))
        elif tail.junk:
            before = b"\n"
            repairs.append(torn_event(tail.junk))
        if size < self._size:
            seq, head = self._left
            repairs.append(encode_event("cut", expected_seq=seq, expected_hash=head))
        return before, repairs

    def _put(self, data: bytes, size: int) -> None:
        """Write all of `data` at the end, `size`, or nothing: half a line must not stay on a full disk."""
        done = 0
        try:
            done = os.write(self._fd, data)
            while done < len(data):  # A short write: the next one tells why.
                done += os.write(self._fd, data[done:])
        except OSError:
            if done:
                os.ftruncate(self._fd, size)
            raise
        self._size = size + done

    def _rotate(self, size: int) -> tuple[list[bytes], list[str]]:
        """Go on in a new file. Returns its first line, or events to write if it could not be done."""
        path = Path(self._path)
        fresh = path.with_name(f"{path.name}.next")
        fd = -1
        try:
            fresh.unlink(missing_ok=True)  # Left by a crash; whoever holds the lock owns this name.
            fd = os.open(fresh, _OPEN_FLAGS | os.O_EXCL, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            event = encode_event("rotate", previous=self.head) + self.suffix
            lines, head = seal_lines([event], self._chain, self.seq, self.head)
            if os.write(fd, lines[0]) != len(lines[0]):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            shift_and_replace(path, fresh, self._keep)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                fresh.unlink(missing_ok=True)
            # The log grows past its limit rather than stop the gateway; the next try is one limit later.
            self._rotate_at = size + self._max_bytes
            return [], [encode_event("rotate_failed", error=str(error))]
        os.close(self._fd)
        made = os.fstat(fd)
        self._fd, self._identity, self._size = fd, (made.st_dev, made.st_ino), made.st_size
        self._rotate_at = self._max_bytes
        self.seq += 1
        self.head = head
        return lines, []


def _open(path: str) -> tuple[int, tuple[int, int]]:
    """Open or create the log. A symlink, a device, somebody else's file is refused (swap attacks)."""
    fd = os.open(path, _OPEN_FLAGS, 0o600)
    found = os.fstat(fd)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "not a regular file"
    elif found.st_uid != os.geteuid():
        problem = f"owned by another user (uid {found.st_uid})"
    elif found.st_mode & 0o022:
        problem = "writable by other users (chmod go-w it)"
    if problem:
        os.close(fd)
        raise OSError(errno.EPERM, problem)
    return fd, (found.st_dev, found.st_ino)


def _acquire(fd: int, *, wait: bool) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    spins = 0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            spins += 1
        if spins <= _LOCK_SPINS:
            os.sched_yield()
        elif not wait:
            raise ContendedError
        elif time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"another process has kept it locked for {_LOCK_WAIT_S:g} s")
        else:
            time.sleep(_LOCK_RETRY_S)
