"""Looking for many byte strings at once, fast where there is none of them, which is nearly always.

Whoever has a server send content of their own choosing can measure how long it takes. So a guess at a few characters of
a pattern must lead to hardly more work than any other content: only 16 of them at a time, all right, start the search
for all patterns. What remains are microseconds (docs/limits.md): 10 us in 64 KB for the last 8 characters of a value
among 20, and none for those at its beginning, where there were 730 us.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

_RUN: Final = re.compile(rb"[0-9A-Za-z]{16,}")
_WORD: Final = 8  # bytes of a machine word, the piece of a pattern that is looked up
_STRIDES: Final = (32, 16, 8)  # one word in so many bytes is looked up
# In us for 64 KB: a search takes as much, and this divided by the length of the pattern; words, this by the stride.
_SEARCH: Final = (2, 200)
_SAMPLING: Final = 1_600
_MANY: Final = 64  # of so many patterns it is not worth to find out what they have in common
# Text of which every character is escaped. Two or three characters are a word then, which is soon guessed. But that
# there are eight in a row is rare, and says nothing of a value: only then are these patterns looked for.
_ESCAPES: Final = (
    (b"%", re.compile(rb"%[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2}){7}")),
    (b"\\", re.compile(rb"\\u00[0-9A-Fa-f]{2}(?:\\u00[0-9A-Fa-f]{2}){7}")),
)


class Patterns:
    """Byte strings, prepared for searching. None of them is empty.

    Measured on 64 KB without a hit: one regex of all patterns took 430 us for the 10 forms of one value and 14,000 us
    for the 200 forms of 20 values. `bytes.find` takes 6 us for each pattern, so 35 us for one value. Looking up one
    word in 32 bytes takes 50 to 80 us for any number of them.
    """

    __slots__ = ("_all", "_behind", "_escaped", "_searched", "_stride", "_words", "longest")

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._all: Final = tuple(patterns)
        if b"" in self._all:
            raise ValueError("an empty pattern is found everywhere")
        self.longest: Final = max(map(len, self._all), default=0)
        self._escaped: Final = []
        others = list(self._all)
        for mark, escapes in _ESCAPES:
            if found := [each for each in others if escapes.search(each)]:
                self._escaped.append((mark, escapes, found))
                others = [each for each in others if not escapes.search(each)]
        stride = _cheapest_stride(others)
        self._stride: Final = stride
        self._searched: Final = _anchors(each for each in others if not _is_sampled(each, stride))
        # By each word that is looked up, what must be there as well. The words are taken from the end of a pattern:
        # how a key begins is often known.
        self._behind: Final[dict[int, set[bytes]]] = {}
        for pattern in others:
            if _is_sampled(pattern, stride):
                anchor = _anchor(pattern)
                for at in range(len(pattern) - stride - _WORD + 1, len(pattern) - _WORD + 1):
                    word = int.from_bytes(pattern[at : at + _WORD], sys.byteorder)
                    self._behind.setdefault(word, set()).add(anchor)
        self._words: Final = frozenset(self._behind)

    def may_match(self, data: bytes) -> bool:
        """False: there is no pattern in `data`. True is right but for very rare accidents."""
        for anchor in self._searched:
            if anchor in data:
                return True
        for mark, escapes, patterns in self._escaped:
            if mark in data and escapes.search(data) and any(pattern in data for pattern in patterns):
                return True
        if self._words:
            words = memoryview(data)[: len(data) & -_WORD].cast("Q")[:: self._stride // _WORD]
            for word in self._words.intersection(words.tolist()):
                if any(anchor in data for anchor in self._behind[word]):
                    return True
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


def _is_sampled(pattern: bytes, stride: int) -> bool:
    """Does it cover a word that is looked up, wherever it stands? Without a stride none is looked up."""
    return 0 < stride <= len(pattern) - _WORD + 1


def _cheapest_stride(patterns: Sequence[bytes]) -> int:
    """At what stride words are to be looked up. 0: it is cheaper to search for each pattern."""
    costs = {0: _search_cost(_anchors(patterns) if len(patterns) < _MANY else patterns)}
    for stride in _STRIDES:
        rest = [pattern for pattern in patterns if not _is_sampled(pattern, stride)]
        costs[stride] = _SAMPLING / stride + _search_cost(rest)
    return min(costs, key=costs.__getitem__)


def _search_cost(patterns: Iterable[bytes]) -> float:
    fixed, by_length = _SEARCH
    return sum([fixed + by_length / len(pattern) for pattern in patterns])


def _anchors(patterns: Iterable[bytes]) -> tuple[bytes, ...]:
    """Byte strings of which every pattern has one in it. The forms of a value have its letters and digits in common."""
    anchors: dict[bytes, None] = {}
    for pattern in sorted(patterns, key=len):
        if not any(anchor in pattern for anchor in anchors):
            anchors[_anchor(pattern)] = None
    return tuple(anchors)


def _anchor(pattern: bytes) -> bytes:
    """A part of a pattern that cannot be guessed, or all of it."""
    return max(_RUN.findall(pattern), key=len, default=pattern)
