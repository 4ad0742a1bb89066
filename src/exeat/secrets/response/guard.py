"""For what a server sends after a change of protocols, which must not be changed: it is cut off before a value.

The end of what has come waits, because a value may begin there, but for the end of a WebSocket frame: the program would
wait for that, and perhaps the server for the program. No value lies across two frames unbroken, for there is a head
between them. How much waits does not depend on what it looks like, as in `replace`.
"""

from __future__ import annotations

from typing import Final

from exeat.secrets.response.redaction import Current

_LONGEST_HEAD: Final = 14  # bytes of a frame


class LeakGuard:
    """One stream. It looks for what has been given out by now, not only for what had been when the stream began."""

    __slots__ = ("_current", "_frames", "_passed", "_tail", "found")

    def __init__(self, current: Current) -> None:
        self._current = current
        self._frames = FrameEnds()
        self._tail = b""  # a value may begin in it
        self._passed = 0  # bytes of it that have gone on all the same
        self.found: tuple[str, ...] = ()  # the names of the secrets of which there was a value, sorted

    def feed(self, data: bytes) -> bytes:
        """What may go on by now. Once `found` names something, nothing may any more."""
        frame_end = self._frames.feed(data)
        redaction = self._current()
        if redaction is None:
            return data
        tail, passed = self._tail, self._passed
        text = tail + data if tail else data
        self.found = redaction.names_in(text)
        if self.found:
            return b""
        table = redaction.table
        passes_to = max(table.let_go(len(tail), data), passed, len(tail) + frame_end if frame_end else 0)
        kept_from = min(passes_to, max(0, len(text) - table.held))
        self._tail = text[kept_from:]
        self._passed = passes_to - kept_from
        return text[passed:passes_to]

    def finish(self) -> bytes:
        """The rest, once nothing follows."""
        rest = self._tail[self._passed :]
        self._tail, self._passed = b"", 0
        return rest


class FrameEnds:
    """Where the frames of a WebSocket end (RFC 6455 5.2). It only counts: what is no WebSocket is no error here."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""  # of a frame whose head is not complete
        self._left = 0  # bytes of payload still to come

    def feed(self, data: bytes) -> int:
        """How many of these bytes there are up to the last end of a frame among them; 0 if there is none."""
        at = end = 0
        size = len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
            else:
                step = self._take_head(data[at : at + _LONGEST_HEAD])
            at += step
            if not (self._left or self._head):
                end = at
        return end

    def _take_head(self, data: bytes) -> int:
        """Read a head, or as much of it as there is. Gives how many of these bytes are of it."""
        head = (self._head + data)[:_LONGEST_HEAD]
        before = len(self._head)
        size = 2
        if len(head) >= size:
            masked, length = divmod(head[1], 0x80)
            counted = {126: 2, 127: 8}.get(length, 0)
            size += counted + 4 * masked
            if len(head) >= size:
                self._left = int.from_bytes(head[2 : 2 + counted], "big") if counted else length
                self._head = b""
                return size - before
        self._head = head
        return len(head) - before
