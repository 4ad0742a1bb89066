"""Where lines go: the code shared by all targets, and the two targets that keep no file.

A sink seals bodies into its chain and writes them. It is used by one thread at a time.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from hashlib import sha256

from exeat.audit.chain import GENESIS, seal_lines, stated_hash
from exeat.audit.record import encode_event

_POLL_MS = 200
# A write of at most this much to a pipe is atomic (pipe(7), PIPE_BUF), so the lines of several processes
# that share one standard output do not mix.
_ATOMIC_BYTES = 4096


class ContendedError(Exception):
    """Another process is writing right now; ask again from a thread that may wait."""


class Sink:
    """A target. By itself it keeps nothing: the lines only pass to those who subscribed.

    `seq` and `head` describe the last line that it has. `suffix` ends the lines that the sink adds itself, as the
    bodies that it is given already have it. `inline`: it may be written from the event loop.
    """

    inline = True

    def __init__(self, chain: str = "") -> None:
        self.seq = 0
        self.head = GENESIS
        self.suffix = ""
        self._chain = chain

    def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
        """Seal and write all of `bodies`, and return the lines. Raises OSError if it could not.

        An inline sink raises `ContendedError` instead of waiting, unless told to wait.
        """
        lines, self.head = seal_lines(bodies, self._chain, self.seq, self.head)
        self.seq += len(lines)
        return lines

    def interrupt(self) -> None:
        """Make a write that is waiting in another thread fail soon."""

    def close(self) -> None:
        """Let go of the target."""


class StreamSink(Sink):
    """Standard output, a pipe, a terminal, a device: cannot be read back, and its reader may stall.

    So it has a chain of its own, and must be written from a thread. Owns `fd`.
    """

    inline = False

    def __init__(self, fd: int) -> None:
        super().__init__(new_chain("s"))
        self._fd = fd
        self._junk = b""  # Part of a line that left before an error.
        self._stop = threading.Event()

    def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
        if self._junk:
            bodies = [torn_event(self._junk) + self.suffix, *bodies]
        lines, _ = seal_lines(bodies, self._chain, self.seq, self.head)
        start = 0
        while start < len(lines):
            end, size = start + 1, len(lines[start])
            while end < len(lines) and size + len(lines[end]) < _ATOMIC_BYTES:
                size += len(lines[end])
                end += 1
            self._put(lines[start:end])
            start = end
        return lines

    def interrupt(self) -> None:
        self._stop.set()

    def close(self) -> None:
        os.close(self._fd)

    def _put(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        if self._junk:
            data = b"\n" + data
        done = 0
        try:
            while done < len(data):
                self._wait_writable()
                try:
                    # Small pieces: a blocking pipe that polls as writable takes this much at once.
                    done += os.write(self._fd, data[done : done + _ATOMIC_BYTES])
                except BlockingIOError:
                    continue
        finally:
            if done:
                self._account(lines, data[:done])

    def _account(self, lines: list[bytes], gone: bytes) -> None:
        """What has left cannot be taken back: whole lines count, part of a line is told of next time."""
        rest = len(gone) - 1 if self._junk else len(gone)
        whole = 0
        while whole < len(lines) and len(lines[whole]) <= rest:
            rest -= len(lines[whole])
            whole += 1
        if not whole:
            self._junk += gone
            return
        self._junk = gone[len(gone) - rest :]
        self.seq += whole
        self.head = stated_hash(lines[whole - 1])

    def _wait_writable(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while not poller.poll(_POLL_MS):
            if self._stop.is_set():
                raise OSError(errno.ETIMEDOUT, "nothing reads the audit stream")


def new_chain(kind: str) -> str:
    """A fresh chain id. `f` is a chain kept in a file, `s` one of a stream."""
    return kind + os.urandom(8).hex()


def torn_event(fragment: bytes) -> str:
    """Says what part of a line lies before it. The digest makes the fragment itself tamper-evident."""
    return encode_event("torn", bytes=len(fragment), sha256=sha256(fragment).hexdigest())
