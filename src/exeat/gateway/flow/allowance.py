"""How often a peer may do what costs us more than it costs the peer."""

from __future__ import annotations


class Allowance:
    """How often something may happen: a store that fills up again with time."""

    def __init__(self, most: int, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = most
        self._since = now

    def spend(self, now: float, *, refill: bool = True) -> bool:
        """Take one. False: there is none left."""
        if self._left == 0 and refill:
            self._left = min(self._most, int((now - self._since) * self._per_s))
            self._since = now
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def earn(self, more: int) -> None:
        self._left = min(self._most, self._left + more)
