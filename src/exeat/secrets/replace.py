"""Replacing byte strings in a stream: placeholders on the way out, values on the way back.

A stream comes in pieces, and how it was cut never changes the result. Only a tail that may still become a match is
held back, so a stream of events is not delayed. What was put in is never searched again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from exeat.errors import ProtocolError

_WORD: Final = 8  # bytes of a machine word, the piece of a pattern that is looked up
_STRIDE: Final = 32  # one word in so many bytes is looked at
_SAMPLED: Final = _STRIDE + _WORD - 1  # a pattern of this length covers such a word wherever it stands
_FEW: Final = 12  # with fewer patterns, looking for each of them is cheaper
_RUN: Final = re.compile(rb"[0-9A-Za-z]{4,}")  # met by chance in one of some hundred pieces of text


class ReplacementTable:
    """What is replaced by what, prepared for searching. Any number of streams may share one.

    The search was measured on 64 KB without a hit. One regex of all patterns took 430 us for the 10 forms of one
    value and 14,000 us for the 200 forms of 20 values. `bytes.find` per pattern takes 5 us each, 50 us and 1,100 us.
    Looking up one word in 32 bytes takes 50 to 80 us for any number of patterns.
    """

    __slots__ = ("_all", "_beginnings", "_joined", "_searched", "_words", "longest", "pairs")

    def __init__(self, pairs: Mapping[bytes, bytes]) -> None:
        if b"" in pairs:
            raise ValueError("an empty pattern is found everywhere")
        self.pairs: Final = dict(pairs)
        self.longest: Final = max(map(len, pairs), default=0)
        self._all: Final = tuple(pairs)
        sampled = [pattern for pattern in pairs if len(pattern) >= _SAMPLED]
        if len(sampled) < _FEW:
            sampled = []
        self._words: Final = frozenset(
            int.from_bytes(pattern[at : at + _WORD], sys.byteorder) for pattern in sampled for at in range(_STRIDE)
        )
        self._searched: Final = _anchors(pattern for pattern in pairs if not sampled or len(pattern) < _SAMPLED)
        self._beginnings: Final = frozenset(
            pattern[:size] for pattern in pairs for size in range(1, min(_WORD, len(pattern)))
        )
        # Every beginning of a word or more ends in a word that stands somewhere in here. One search in this, 1 us for
        # the forms of one value, is all that most pieces need; trying every beginning took 80 us.
        self._joined: Final = b"".join([pattern[:-1] for pattern in pairs])

    def may_match(self, data: bytes) -> bool:
        """False: there is no pattern in `data`. True is right but for very rare accidents."""
        for pattern in self._searched:
            if pattern in data:
                return True
        if self._words:
            words = memoryview(data)[: len(data) & -_WORD].cast("Q")[:: _STRIDE // _WORD]
            return not self._words.isdisjoint(words.tolist())
        return False

    def matches(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Where which pattern stands in `data`: leftmost first, the longest of those, never overlapping."""
        waiting = [(at, -len(pattern), pattern) for pattern in self._all if (at := data.find(pattern)) >= 0]
        heapify(waiting)
        free = 0
        while waiting:
            at, _, pattern = heappop(waiting)
            if at >= free:
                free = at + len(pattern)
                yield at, pattern
            following = data.find(pattern, free)
            if following >= 0:
                heappush(waiting, (following, -len(pattern), pattern))

    def held_from(self, data: bytes, start: int) -> int:
        """Where the longest tail of `data[start:]` begins that is a beginning of some pattern, and not all of it."""
        size = len(data)
        longest = min(size - start, self.longest - 1)
        if longest >= _WORD and (word := data[-_WORD:]) in self._joined:
            held = max([_longest_tail(data, pattern, word, longest) for pattern in self._all])
            if held:
                return size - held
        for length in range(min(longest, _WORD - 1), 0, -1):
            if data[-length:] in self._beginnings:
                return size - length
        return size


def _anchors(patterns: Iterable[bytes]) -> tuple[bytes, ...]:
    """Byte strings of which every pattern has one in it. The forms of a value have its letters and digits in common.

    For a value in base64, with some 50 forms, this took the search from 370 to 70 us.
    """
    anchors: dict[bytes, None] = {}
    for pattern in sorted(patterns, key=len):
        if not any(anchor in pattern for anchor in anchors):
            anchors[max(_RUN.findall(pattern), key=len, default=pattern)] = None
    return tuple(anchors)


def _longest_tail(data: bytes, pattern: bytes, word: bytes, longest: int) -> int:
    """How much of the tail of `data` is the beginning of this pattern; 0 if less than a word. `word` is its last."""
    found = pattern.rfind(word, 0, min(longest, len(pattern) - 1))
    while found >= 0:
        length = found + _WORD
        if data.endswith(pattern[:length]):
            return length
        found = pattern.rfind(word, 0, length - 1)
    return 0


class StreamReplacer:
    """One stream in which byte strings are replaced. Every split of it gives the same output.

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
        """What is kept back: the beginning of a pattern, never the whole of it, unless a longer one begins with it."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """What may go on by now. Raises ProtocolError if there are more hits than allowed."""
        if self._held:
            data = self._held + data
        return self._replace(data, self._table.held_from(data, 0))

    def finish(self) -> bytes:
        """The rest, once nothing follows."""
        data = self._held
        return self._replace(data, len(data)) if data else b""

    def _replace(self, data: bytes, held_from: int) -> bytes:
        """`held_from` is len(data) in the end: a tail then stands for itself."""
        table = self._table
        if not table.may_match(data):
            self._held = data[held_from:]
            return data[:held_from]  # the same object if nothing is held
        parts: list[bytes] = []
        done = 0
        for at, pattern in table.matches(data):
            if at >= held_from:
                break
            self._count(pattern)
            parts.append(data[done:at])
            parts.append(table.pairs[pattern])
            done = at + len(pattern)
            if done > held_from:
                # The tail was part of this match. A shorter one may begin behind it.
                held_from = table.held_from(data, done)
        parts.append(data[done:held_from])
        self._held = data[held_from:]
        return b"".join(parts)

    def _count(self, pattern: bytes) -> None:
        self._total += 1
        if self._max_hits and self._total > self._max_hits:
            raise ProtocolError("too many placeholders in one request", status=413)
        self.hits[pattern] = self.hits.get(pattern, 0) + 1
