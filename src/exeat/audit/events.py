"""Live view of the log: what was written, as decoded lines, for a program that watches."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class EventStream:
    """An async iterator over lines as they are written, for one consumer.

    A slow consumer must never slow the gateway or grow its memory: the oldest lines are dropped, and the
    next item is then `{"event": "gap", "lost": n}`. Ends when the journal closes.
    """

    def __init__(self, max_queued: int, leave: Callable[[EventStream], None]) -> None:
        if max_queued < 1:
            raise ValueError("max_queued must be at least 1")
        self._max = max_queued
        self._leave = leave
        # Raw lines: decoding is paid by the consumer when it reads, and not at all for what is dropped.
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def publish(self, lines: list[bytes]) -> None:
        """For the journal: hand over lines that are in the log."""
        self._lines.extend(lines)
        while len(self._lines) > self._max:
            self._lines.popleft()
            self._lost += 1
        self._wake()

    def end(self) -> None:
        """For the journal: nothing more will come; what is queued can still be read."""
        self._closed = True
        self._wake()

    def close(self) -> None:
        """For the consumer: stop listening and drop what is queued."""
        self._lines.clear()
        self._lost = 0
        self._leave(self)
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while True:
            if self._lost:
                lost, self._lost = self._lost, 0
                return {"event": "gap", "lost": lost}
            if self._lines:
                event: dict[str, Any] = json.loads(self._lines.popleft())
                return event
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
