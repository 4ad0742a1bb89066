"""Memory that others make a gateway hold: the windows of decoders, and bodies that must be there as a whole.

What one body may take is bounded where it is read. Here is the bound for all of them together: a few bytes of a
compressed body can fill a window of 16 MB, and whoever sent them need not go on.
"""

from __future__ import annotations

from typing import Final

# A decoder that only watches is a convenience: all that goes unseen without it is a string that is worth nothing.
_WATCHING_PART: Final = 32
_WHOLE_PART: Final = 2


class Memory:
    """Bytes that may be held at a time. May be part of a larger memory, which is taken from with it."""

    __slots__ = ("_limit", "_parent", "used")

    def __init__(self, limit: int, parent: Memory | None = None) -> None:
        self._limit = limit
        self._parent = parent
        self.used = 0

    def take(self, size: int) -> bool:
        """False: there is not so much left, and nothing was taken."""
        if self.used + size > self._limit or (self._parent is not None and not self._parent.take(size)):
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._parent is not None:
            self._parent.give_back(size)

    def set_limit(self, limit: int) -> None:
        """Another limit. What has been taken stays so, even if it is more."""
        self._limit = limit

    def lend(self) -> Loan:
        return Loan(self)


class Loan:
    """What one body has of a memory. It is given back at the latest when nobody has the loan any more."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def grow_to(self, size: int) -> bool:
        """Have so much in all, or as much as before if that was more. False: it cannot be had."""
        more = size - self.size
        if more <= 0:
            return True
        if not self._memory.take(more):
            return False
        self.size = size
        return True

    def close(self) -> None:
        size, self.size = self.size, 0
        if size:
            self._memory.give_back(size)

    __del__ = close


class BodyMemory:
    """The memory of a gateway for bodies, and who may have how much of it."""

    __slots__ = ("unpacking", "watching", "whole")

    def __init__(self, limit: int) -> None:
        self.unpacking = Memory(limit)  # of what must be unpacked to go on: all that there is
        self.watching = Memory(limit // _WATCHING_PART, self.unpacking)
        self.whole = Memory(limit // _WHOLE_PART, self.unpacking)

    def set_limit(self, limit: int) -> None:
        self.unpacking.set_limit(limit)
        self.watching.set_limit(limit // _WATCHING_PART)
        self.whole.set_limit(limit // _WHOLE_PART)
