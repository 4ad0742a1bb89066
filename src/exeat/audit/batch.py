"""Parts of a journal: lines that are written together, a thread for writes that may block, and a live view."""

from __future__ import annotations

import asyncio
import json
import threading
from asyncio import Future
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Self

from exeat.errors import AuditError

MAX_LINES = 100_000
MAX_CHARS = 64 * 1024 * 1024

_REFUSED = "the decision could not be recorded"


class Batch:
    """Lines that are written together or not at all, in order. Callers wait for commits, and for no other line."""

    __slots__ = ("chars", "commit_at", "from_backlog", "full", "gap_lost", "gap_refused", "lines", "waiters")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.chars = 0
        self.full = False  # memory for waiting lines is used up (a reader that stalls, a flood of denials)
        self.commit_at: list[int] = []
        self.waiters: list[Future[None]] = []
        self.from_backlog = False
        self.gap_lost = 0
        self.gap_refused = 0

    def add(self, line: str) -> None:
        lines = self.lines
        lines.append(line)
        self.chars += len(line)
        self.full = len(lines) >= MAX_LINES or self.chars >= MAX_CHARS

    def add_commit(self, line: str, waiter: Future[None]) -> None:
        self.commit_at.append(len(self.lines))
        self.waiters.append(waiter)
        self.add(line)

    def without_commits(self) -> list[str]:
        """The lines of things that have happened, whether or not they could be written."""
        commits = set(self.commit_at)
        return [line for at, line in enumerate(self.lines) if at not in commits]

    def succeed(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, why: str) -> None:
        for waiter in self.waiters:
            refuse(waiter, why)


def refuse(waiter: Future[None], why: str) -> None:
    """Tell a caller that its decision is not on record; `why` is for the operator only."""
    if not waiter.done():
        waiter.set_exception(AuditError(_REFUSED, detail=why))
        # Marks it as seen: a caller that has gone away must not leave "never retrieved" in the log.
        waiter.exception()


class Worker:
    """Runs jobs one after the other in a thread that starts with the first job.

    The thread is a daemon and is never joined: a pipe that nothing reads must not keep a finished program
    from exiting, which a `ThreadPoolExecutor` would.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def submit(self, job: Callable[[], None]) -> None:
        """Queue `job`, which must not raise."""
        self._jobs.put(job)
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Let the thread end after the jobs queued so far."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
