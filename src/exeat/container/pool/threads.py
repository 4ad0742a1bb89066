"""Blocking calls, away from the event loop: an engine may take seconds, and a stopped one never answers.

Each has a thread of its own, a daemon: one that hangs must not keep the program from ending. What else of a pool goes
on by itself is counted here as well, so that closing can wait for all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """The calls of one pool. The caller limits how many there are at once."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Begin it. Cancelling the future does not end the job: the waiting task shields it, or takes its result."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = job()
            except BaseException as error:
                tell(_fail, error)
            else:
                tell(_succeed, result)

        def tell(then: Callable[[asyncio.Future[T], Any], None], what: object) -> None:
            try:
                loop.call_soon_threadsafe(then, outcome, what)
            except RuntimeError:
                pass  # the loop is gone, and with it all who waited

        self.watch(outcome)
        try:
            threading.Thread(target=work, name="exeat-engine", daemon=True).start()
        except RuntimeError as error:  # the system has no room for one
            outcome.set_exception(error)
        return outcome

    def watch(self, work: asyncio.Future[Any]) -> None:
        """It is under way until it is done."""
        self._running.add(work)
        work.add_done_callback(self._forget)

    async def finished(self, limit_s: float) -> bool:
        """Wait for all that is under way, and for what that starts in turn. False: something hangs."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while self._running:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(self._running, timeout=left)
        return True

    def _forget(self, outcome: asyncio.Future[Any]) -> None:
        self._running.discard(outcome)
        if not outcome.cancelled():
            outcome.exception()  # retrieved, in case nothing waits for it


def _succeed(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[T], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
