"""Copies bytes between descriptors, for a process that neither of them may block."""

from __future__ import annotations

import errno
import os
import select
from typing import Final

_READ: Final = 64 << 10
# A pipe that is ready for writing takes so much without blocking. The caller's streams must stay as they are.
_WRITE: Final = select.PIPE_BUF

_GONE: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL  # of what is written to; sockets hang up only


_HAS_LEFT: Final = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # the last: a terminal that is gone


class Pump:
    """One stream. It reads on when all that it has read is written."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.received = 0
        self.sent = 0
        self.has_ended = False  # nothing more comes
        self.is_broken = False  # no one takes it any more
        self.fault = ""  # why not, unless whoever took it has simply left
        self._waiting = b""

    @property
    def is_empty(self) -> bool:
        """All that has come was passed on, or cannot be."""
        return not self._waiting or self.is_broken

    def wishes(self) -> list[tuple[int, int]]:
        """What to poll for. A sink without anything to write tells whether its other end is still there."""
        if self.is_broken:
            return []
        if self._waiting:
            return [(self.sink, select.POLLOUT)]
        return [(self.sink, 0)] if self.has_ended else [(self.source, select.POLLIN), (self.sink, 0)]

    def move(self, ready: dict[int, int]) -> None:
        if not self.is_broken and ready.get(self.sink, 0) & _GONE:
            self._break()
        if not self._waiting and not self.has_ended and not self.is_broken and self.source in ready:
            self._read()
        elif self._waiting and not self.is_broken and ready.get(self.sink, 0) & select.POLLOUT:
            self._write()

    def _read(self) -> None:
        try:
            self._waiting = os.read(self.source, _READ)
        except BlockingIOError:
            return
        except OSError:  # a terminal that is gone, a connection that was reset
            self._waiting = b""
        self.received += len(self._waiting)
        self.has_ended = not self._waiting

    def _write(self) -> None:
        try:
            written = os.write(self.sink, self._waiting[:_WRITE])
        except BlockingIOError:
            return
        except OSError as error:
            self.fault = "" if error.errno in _HAS_LEFT else error.strerror or str(error)
            self._break()
            return
        self.sent += written
        self._waiting = self._waiting[written:]

    def _break(self) -> None:
        self.is_broken, self._waiting = True, b""


class Tail:
    """The last of what a program said, for the case that it is needed."""

    def __init__(self, source: int, limit: int) -> None:
        self.source = source
        self.has_ended = False
        self._limit = limit
        self._kept = b""

    def wishes(self) -> list[tuple[int, int]]:
        return [] if self.has_ended else [(self.source, select.POLLIN)]

    def move(self, ready: dict[int, int]) -> None:
        if self.source in ready and not self.has_ended:
            self.take()

    def take(self) -> None:
        try:
            data = os.read(self.source, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.has_ended = not data
        self._kept = (self._kept + data)[-self._limit :]

    def lines(self, most: int) -> list[str]:
        """As text that can be shown: it is the guest's, and may have anything in it."""
        text = self._kept.decode("utf-8", "replace")
        shown = ("".join(char for char in line if char.isprintable()) for line in text.splitlines())
        return [line for line in shown if line.strip()][-most:]
