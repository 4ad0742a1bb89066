"""The log as a regular file that several processes may append to.

One chain per file, whoever writes. Every batch is written under `flock`, after a look at the file: if
it is not as we left it, its last line tells where the chain stands; if another file has taken its name,
we follow. Evidence is never deleted: half a line that a crash left is closed off and told of.

A log in reach of what it is about goes on only in files that were there at the start (`exeat.audit.rotate`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from exeat.audit.chain import GENESIS, seal_lines
from exeat.audit.parts import file_problem, read_tail
from exeat.audit.record import encode_event
from exeat.audit.rotate import FilePool, Identity, begin_next
from exeat.audit.sink import ContendedError, Sink, StreamSink, new_chain, torn_event
from exeat.errors import StartError, log_not_opened

_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_LOCK_WAIT_S = 5.0
_MAX_KEEP = 9_998  # the number of a rotated file has four digits at most
_LOCK_RETRY_S = 0.0005
# Another process holds the lock for some 10 us. Trying again that long is cheaper than a thread.
_LOCK_SPINS = 20
_MOVES = 16
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
# How long a move by others (logrotate) may go unseen while the file is as we left it.
NAME_CHECK_S = 0.1
_STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


class LogFile(Sink):
    """A sink on a regular file. Holds the file open, but the lock only while it writes."""

    def __init__(self, path: str, *, max_bytes: int, keep: int, in_reach: bool = False) -> None:
        """`in_reach`: of a command that must not come to have any file of the log."""
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._last_event = ""
        self._size = -1  # As we left it; unknown at first.
        self._left = (0, GENESIS)
        self._rotate_at = max_bytes
        self._name_checked = 0.0
        self._added: list[bytes] = []
        self._fd, self._identity = _open(path)
        self._pool: FilePool | None = None
        try:
            if in_reach:
                self._pool = FilePool(path, keep)
            # Shows now, and not at the first request, whether this is a log that can be continued.
            _acquire(self._fd, wait=True)
            if size := os.fstat(self._fd).st_size:
                self._catch_up(size)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except BaseException:
            self.close()
            raise

    def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
        size = self._lock(wait=wait)
        try:
            before = b""
            repairs: list[str] = []
            if size != self._size or size == 0:
                before, repairs = self._catch_up(size)
            if self._max_bytes and size >= self._rotate_at and not repairs:
                repairs = self._rotate(size, before)
                size, before = self._size, b""
            if repairs:
                bodies = [event + self.suffix for event in repairs] + bodies
            lines = self._add(bodies, size, before)
            if self._added:
                lines, self._added = self._added + lines, []
            return lines
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
        if self._pool is not None:
            self._pool.close()

    def _lock(self, *, wait: bool) -> int:
        """Take the lock of the file that has our name now, hold it on return, and tell its size.

        A process that leaves a file adds a line to it first, so as long as nothing was added its name need not be
        looked at every time. And the size comes from `lseek`: after a `stat` the kernel has to give the
        next write a new time stamp, which made a batch cost 9 us instead of 5.
        """
        for _ in range(_MOVES):
            try:
                fcntl.flock(self._fd, _TRY)
            except BlockingIOError:
                _acquire(self._fd, wait=wait)
            try:
                size = os.lseek(self._fd, 0, os.SEEK_END)
                now = time.monotonic()
                if size and size == self._size and now < self._name_checked + NAME_CHECK_S:
                    return size
                moved = self._find_name()
                if moved is None:
                    self._name_checked = now
                    return size
                self._leave(size, *moved)
            except BaseException:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                raise
        raise OSError(errno.EAGAIN, "the file keeps being replaced")

    def _find_name(self) -> tuple[int, Identity] | None:
        """Another file that has our name by now, opened. None: we have it, or no other may."""
        if self._pool is not None:
            fd = self._pool.moved_to(self._identity)
            return (fd, _identity(fd)) if fd >= 0 else None
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return _open(self._path)
        return None if (found.st_dev, found.st_ino) == self._identity else _open(self._path)

    def _leave(self, size: int, fd: int, identity: Identity) -> None:
        """Follow our name to another file. The line added here makes all other writers look and follow."""
        try:
            if size:
                before, repairs = self._catch_up(size) if size != self._size else (b"", [])
                if self._last_event != "rotated" or repairs:
                    events = [event + self.suffix for event in (*repairs, encode_event("rotated"))]
                    self._added += self._add(events, size, before)
        except BaseException:
            os.close(fd)
            raise
        self._switch(fd, identity, size=-1)

    def _switch(self, fd: int, identity: Identity, *, size: int) -> None:
        os.close(self._fd)
        self._fd, self._identity, self._size = fd, identity, size
        self._rotate_at = self._max_bytes

    def _catch_up(self, size: int) -> tuple[bytes, list[str]]:
        """Learn where the chain stands. Returns what must be written first: bytes, then events.

        Changes nothing by which a second call, after a write that failed, would come to another result.
        """
        if size == 0:
            self._chain = self._chain or new_chain("f")
            # Emptied or moved away by others while we ran: the chain goes on, and says so.
            return b"", [encode_event("rotate", previous=self.head)] if self.seq else []
        tail = read_tail(self._fd, size)
        if tail is None:
            raise OSError(errno.EINVAL, "the file is not an audit log")
        self.seq, self.head, self._last_event = tail.seq, tail.head, tail.event
        self._chain = tail.chain or new_chain("f")
        before = b"\n" if tail.unended else b""
        repairs = []
        if tail.junk.endswith(b"\n"):
            repairs.append(encode_event("foreign", bytes=len(tail.junk)))
        elif tail.junk:
            before = b"\n"
            repairs.append(torn_event(tail.junk))
        # In a pool a file comes back, emptied, after others have gone on for long.
        if size < self._size and (self._pool is None or tail.seq < self._left[0]):
            seq, head = self._left
            repairs.append(encode_event("cut", expected_seq=seq, expected_hash=head))
        return before, repairs

    def _add(self, bodies: list[str], size: int, before: bytes = b"") -> list[bytes]:
        """Write all of `bodies` at the end, `size`, or nothing: half a line must not stay on a full disk."""
        lines, head = seal_lines(bodies, self._chain, self.seq, self.head)
        data = before + b"".join(lines)
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
        self.seq += len(lines)
        self.head = head
        self._last_event = ""
        self._left = (self.seq, head)
        return lines

    def _rotate(self, size: int, before: bytes) -> list[str]:
        """Go on in another file, or return an event that says why not."""
        self._added += self._add([encode_event("rotated") + self.suffix], size, before)
        event = encode_event("rotate", previous=self.head) + self.suffix
        lines, head = seal_lines([event], self._chain, self.seq, self.head)
        try:
            fd = self._begin_next(lines[0])
        except OSError as error:
            # The log grows past its limit rather than stop the gateway; the next try is one limit later.
            self._rotate_at = self._size + self._max_bytes
            return [encode_event("rotate_failed", error=str(error))]
        self._switch(fd, _identity(fd), size=len(lines[0]))
        self._added += lines
        self.seq += 1
        self.head = head
        self._left = (self.seq, head)
        return []

    def _begin_next(self, line: bytes) -> int:
        if self._pool is not None:
            return self._pool.begin_next(line)
        return begin_next(self._path, line, self._keep)


def _identity(fd: int) -> Identity:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _open(path: str) -> tuple[int, Identity]:
    """Open or create the log. A symlink, a device, another user's file is refused (swap attacks)."""
    fd = os.open(path, _OPEN_FLAGS, 0o600)
    found = os.fstat(fd)
    if problem := file_problem(found):
        os.close(fd)
        raise OSError(errno.EPERM, problem)
    return fd, (found.st_dev, found.st_ino)


def _acquire(fd: int, *, wait: bool) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    spins = 0
    while True:
        try:
            fcntl.flock(fd, _TRY)
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


def open_sink(target: str | None, *, max_bytes: int, keep: int, in_reach: bool = False) -> Sink:
    """The sink for `target`: None, `-` for standard output, a file, or a device or pipe as a stream."""
    if target is None:
        return Sink(new_chain("s"))
    if max_bytes < 0 or not 1 <= keep <= _MAX_KEEP:
        raise StartError(f"the audit log needs max_bytes of 0 or more and keep of 1 to {_MAX_KEEP}")
    try:
        if target in _STANDARD:
            return StreamSink(os.dup(_STANDARD[target]))
        if _is_stream(target):
            return StreamSink(_open_stream(target))
        return LogFile(target, max_bytes=max_bytes, keep=keep, in_reach=in_reach)
    except OSError as error:
        raise log_not_opened(target, error) from error


def _is_stream(target: str) -> bool:
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _open_stream(target: str) -> int:
    """A device or a named pipe. Never blocks: a pipe without a reader is an error at once."""
    fd = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    found = os.fstat(fd)
    is_pipe = stat.S_ISFIFO(found.st_mode)
    owners = {os.geteuid()} if is_pipe else {os.geteuid(), 0}
    if not (is_pipe or stat.S_ISCHR(found.st_mode)) or found.st_uid not in owners:
        os.close(fd)
        raise OSError(errno.EPERM, f"not a pipe or device of ours (owner uid {found.st_uid})")
    return fd
