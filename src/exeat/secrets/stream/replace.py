"""Replacing byte strings in a stream: placeholders on the way out, values on the way back.

A stream comes in pieces, and how it was cut never changes the result. What was put in is never searched again.

The end of a piece is held back, because a match may begin there. How much of it depends on lengths and on the ends
of lines alone, never on whether it looks like a beginning: a program that has a server repeat content of its own
choosing would see that, in the sizes of what it gets, and find a value one character after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.stream.search import Patterns

_LEAST_HELD: Final = 512
_LONG_BYTES: Final = 16 * 1024  # what is worth not to be copied
_STEPS: Final = 4


class ReplacementTable(Patterns):
    """What is replaced by what, prepared for searching. Any number of streams may share one.

    `held`: so many bytes at the end of a stream may be the beginning of a match. Rounded up to a power of two, it does
    not tell how long a value is.
    """

    __slots__ = ("_has_lines", "_step", "held", "pairs")

    def __init__(self, pairs: Mapping[bytes, bytes]) -> None:
        super().__init__(pairs)
        self.pairs: Final = dict(pairs)
        self.held: Final = max(_LEAST_HELD, 1 << (self.longest - 1).bit_length()) if pairs else 0
        # In small pieces, what is held is not searched again for each of them.
        self._step: Final = max(1, self.held // _STEPS)
        # No value has the end of a line in it, so none goes on behind one: lines need not wait. Events and what shows
        # its progress may end lines with CR alone.
        self._has_lines: Final = not any(b"\n" in pattern or b"\r" in pattern for pattern in pairs)

    def let_go(self, waiting: int, data: bytes) -> int:
        """How much of a stream may go on when `data` has come behind so many bytes that wait.

        No match that begins there ends behind all that has come. There was no end of a line in what waits.
        """
        size = waiting + len(data)
        over = size - self.held
        free = over - over % self._step if over > 0 else 0
        if not self._has_lines:
            return free
        start = max(0, free - waiting)
        line = max(data.rfind(b"\n", start), data.rfind(b"\r", start))
        return waiting + line + 1 if line >= 0 else free


class StreamReplacer:
    """One stream in which byte strings are replaced. Every split of it makes the same output.

    `hits` says how often each pattern was found so far. `max_hits` limits their sum; 0 is no limit.
    """

    __slots__ = ("_held", "_max_hits", "_table", "_total", "hits")

    def __init__(self, pairs: Mapping[bytes, bytes] | ReplacementTable, *, max_hits: int = 0) -> None:
        self._table = pairs if isinstance(pairs, ReplacementTable) else ReplacementTable(pairs)
        self._max_hits = max_hits
        self._held = b""
        self._total = 0
        self.hits: dict[bytes, int] = {}

    @property
    def held(self) -> bytes:
        """What is kept back. It may have a whole pattern in it."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """What may go on by now. Raises ProtocolError if there are more hits than allowed."""
        free = self._table.let_go(len(self._held), data)
        if self._held:
            data = self._held + data
        if not free:
            self._held = data
            return b""
        return self._replace(data, free)

    def feed_parts(self, data: bytes) -> list[bytes | memoryview]:
        """The same in parts, for those who join them anyway: where nothing is found, which is nearly always, a long
        piece is not copied. Two copies of each byte less were 0.1 CPU s in a gigabyte.
        """
        table, held = self._table, self._held
        free = table.let_go(len(held), data) - len(held)
        # A match that begins in what was held ends in the seam.
        if (
            len(data) < _LONG_BYTES
            or free <= 0
            or table.may_match(held + data[: table.longest - 1])
            or table.may_match(data)
        ):
            return [self.feed(data)]
        self._held = data[free:]
        return [held, memoryview(data)[:free]]

    def finish(self) -> bytes:
        """The rest, once nothing follows."""
        data = self._held
        return self._replace(data, len(data)) if data else b""

    def _replace(self, data: bytes, free: int) -> bytes:
        """Let go of what comes before `free`, and of a match that begins there."""
        table = self._table
        parts: list[bytes] = []
        done = 0
        if table.may_match(data):
            for at, pattern in table.matches(data):
                if at >= free:
                    break
                self._count(pattern)
                parts.append(data[done:at])
                parts.append(table.pairs[pattern])
                done = at + len(pattern)
        free = max(free, done)
        self._held = data[free:]
        if not parts:
            return data[:free]  # the same object if nothing is held
        parts.append(data[done:free])
        return b"".join(parts)

    def _count(self, pattern: bytes) -> None:
        self._total += 1
        if self._max_hits and self._total > self._max_hits:
            raise ProtocolError("too many placeholders in one request", status=413)
        self.hits[pattern] = self.hits.get(pattern, 0) + 1
