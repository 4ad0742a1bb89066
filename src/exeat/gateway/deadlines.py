"""When to give up what is under way: one timer for all of it. One for each connection cost 3 us."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Attempt(Protocol):
    def expire(self) -> None:
        """Its time is up."""


class Deadlines:
    """Attempts that have so much time. Nearly all are over long before it is up."""

    __slots__ = ("_due", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: dict[Attempt, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, attempt: Attempt, limit_s: float) -> None:
        when = self._due[attempt] = self.loop.time() + limit_s
        timer = self._timer
        if timer is None or when < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self.loop.call_at(when, self._on_timer)

    def remove(self, attempt: Attempt) -> None:
        """It is over, one way or another."""
        self._due.pop(attempt, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now = self.loop.time()
        for attempt in [each for each, when in self._due.items() if when <= now]:
            del self._due[attempt]
            attempt.expire()
        if self._due:
            self._timer = self.loop.call_at(min(self._due.values()), self._on_timer)
