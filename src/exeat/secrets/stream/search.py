"""Looking for many byte strings at once, fast where there is none of them, which is nearly always.

A program that has a server send content of its choice can measure how long it takes. So a guess at a few characters of
a pattern must lead to hardly more work than any other content: only 16 of them at a time, all right, start the search
for all patterns. What remains are microseconds (docs/limits.md): 10 us in 64 KB for the last 8 characters of a value
among 20, and none for those at its beginning, where there were 730 us.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

_RUN: Final = re.compile(rb"[0-9A-Za-z]{16,}")
_WORD: Final = 8  # bytes of a machine word, the piece of a pattern that is looked up
_STRIDES: Final = (56, 48, 40, 32, 24, 16, 8)  # one word in so many bytes is looked up
_SHORT_STRIDE: Final = 32
_APART_BYTES: Final = 16  # at the beginning of a pattern, of which no word is looked up: it may be known
# In us for 64 KB: a search takes as much, and this divided by the length of the pattern; words, this by the stride.
_SEARCH: Final = (1, 230)
_SAMPLING: Final = 1_600
# In less than this `bytes.find` looks at every byte: 6.8 us in a body of 612 bytes, for which words take 1.3.
_MUCH_BYTES: Final = 30_000
_MANY: Final = 64  # of so many patterns it is not worth to find out what they have in common


class Patterns:
    """Byte strings, prepared for searching. None of them is empty.

    Measured on 64 KB without a hit: one regex of all patterns took 430 us for the 10 forms of one value and 14,000 us
    for the 200 forms of 20 values, Aho-Corasick in Rust 90 us for one value and 110 for a hundred. `bytes.find` takes
    2 to 5 us for each pattern, so 20 us for one value. Looking up one word in 40 bytes takes 35 to 50 us for any number
    of them, one in 32 bytes 50 to 65.
    """

    __slots__ = (
        "_all", "_behind", "_escaped", "_in_little", "_in_much", "_samples_much", "_stride", "_words", "longest",
    )  # fmt: skip

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._all: Final = tuple(patterns)
        if b"" in self._all:
            raise ValueError("an empty pattern is found everywhere")
        self.longest: Final = max(map(len, self._all), default=0)
        self._escaped: Final = []
        others = list(self._all)
        for escape in _ESCAPES:
            if found := [each for each in others if escape.eight.search(each)]:
                self._escaped.append(_Escaped(escape, found))
                others = [each for each in others if not escape.eight.search(each)]
        stride = _cheapest_stride(others)
        self._stride: Final = stride
        sampled = [each for each in others if _is_sampled(each, stride)]
        # What is searched for in a little and in much data, apart from words.
        self._in_little: Final = _anchors(each for each in others if not _is_sampled(each, stride))
        anchors = _anchors(others) if len(others) < _MANY else ()
        self._samples_much: Final = not anchors or _search_cost(anchors) > _sampling_cost(others, stride)
        self._in_much: Final = self._in_little if self._samples_much else anchors
        # By each word that is looked up, what must be there as well. The words are taken from the end of a pattern:
        # how a key begins is often known.
        self._behind: Final[dict[int, tuple[bytes, ...]]] = {}
        for pattern in sampled:
            anchor = (_anchor(pattern),)
            for at in range(len(pattern) - stride - _WORD + 1, len(pattern) - _WORD + 1):
                word = int.from_bytes(pattern[at : at + _WORD], sys.byteorder)
                before = self._behind.setdefault(word, anchor)
                if before is not anchor and anchor[0] not in before:
                    self._behind[word] = before + anchor
        self._words: Final = frozenset(self._behind)

    def may_match(self, data: bytes) -> bool:
        """False: there is no pattern in `data`. True is right but for very rare accidents."""
        is_much = len(data) >= _MUCH_BYTES
        for anchor in self._in_much if is_much else self._in_little:
            if anchor in data:
                return True
        for escaped in self._escaped:
            if escaped.escape.mark in data and escaped.may_match(data, is_much=is_much):
                return True
        if self._words and (self._samples_much or not is_much):
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


class _Escape(NamedTuple):
    """A way to write a character."""

    mark: bytes  # each begins with it
    size: int
    eight: re.Pattern[bytes]  # so many in a row
    run: re.Pattern[bytes]


def _escape(mark: bytes, one: bytes) -> _Escape:
    return _Escape(mark[:1], len(mark) + 2, re.compile(b"%b(?:%b){7}" % (one, one)), re.compile(b"(?:%b)++" % one))


_ESCAPES: Final = (_escape(b"%", b"%[0-9A-Fa-f]{2}"), _escape(b"\\u00", rb"\\u00[0-9A-Fa-f]{2}"))
_FEW: Final = 8  # so many are searched for at once: the search for eight escapes takes as long
_CONSECUTIVE: Final = 3  # marks that are looked for at a distance
_NEAREST: Final = 6  # in escapes: with less between them the search for eight escapes is as fast
_FURTHEST: Final = 16


class _Escaped:
    """Patterns of which every character is escaped. Two or three characters are a word then, which is soon guessed. But
    that there are eight in a row is rare, and says nothing of a value: of many patterns, only then are they looked for.

    To find eight takes 20 us in 64 KB where there are marks, and is what 4 patterns cost more than to search for them.
    So before that, marks are looked for in one byte of many: 4 us.
    """

    __slots__ = ("_distance", "_patterns", "escape")

    def __init__(self, escape: _Escape, patterns: Sequence[bytes]) -> None:
        self.escape: Final = escape
        self._patterns: Final = patterns
        # Of the escapes in a row that every pattern has, one in `distance`, three times.
        shortest = min(max(map(len, escape.run.findall(pattern))) // escape.size for pattern in patterns)
        self._distance: Final = min(shortest // _CONSECUTIVE, _FURTHEST)

    def may_match(self, data: bytes, *, is_much: bool) -> bool:
        if len(self._patterns) > _FEW:
            if is_much and self._distance >= _NEAREST and not self._has_marks(data):
                return False
            if not self.escape.eight.search(data):
                return False
        return any(pattern in data for pattern in self._patterns)

    def _has_marks(self, data: bytes) -> bool:
        """Are there marks at such a distance? Wherever a row of escapes begins, one of these slices has three."""
        size, marks = self.escape.size, self.escape.mark * _CONSECUTIVE
        return any(marks in data[start :: size * self._distance] for start in range(size))


def _is_sampled(pattern: bytes, stride: int) -> bool:
    """Does it cover a word that is looked up, wherever it stands? Without a stride none is looked up."""
    least = stride + _WORD - 1 + (_APART_BYTES if stride > _SHORT_STRIDE else 0)
    return stride > 0 and least <= len(pattern)


def _cheapest_stride(patterns: Sequence[bytes]) -> int:
    """At what stride words are looked up, if they are. 0: every pattern is too short."""
    strides = [each for each in _STRIDES if any(_is_sampled(pattern, each) for pattern in patterns)]
    return min(strides, key=lambda stride: _sampling_cost(patterns, stride), default=0)


def _sampling_cost(patterns: Iterable[bytes], stride: int) -> float:
    """With a search for those that are too short for it."""
    rest = [pattern for pattern in patterns if not _is_sampled(pattern, stride)]
    return (_SAMPLING / stride if stride else 0) + _search_cost(rest)


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
