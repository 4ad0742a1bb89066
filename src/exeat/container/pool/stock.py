"""The sandboxes of one name: those that are warm, those being made, and the claims that wait for one.

Each leaves the stock once, to one claim, and never comes back. A new one is made in its place at the engine's own rate.
While the engine fails, tries become rare; claims wait, and are told the engine's reason when their time is over.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from exeat.container.pool.warm import WarmSandbox
from exeat.errors import ExeatError, JailError

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_TRIES: Final = 3
_BEHIND_S: Final = 0.05


class PoolClosedError(ExeatError, RuntimeError):
    """The pool, or the claim, is over."""


class NoSandboxError(ExeatError, TimeoutError):
    """No sandbox became ready in time. `detail` and the cause say what the engine said, if it has failed."""


@dataclass(frozen=True, slots=True)
class StockStats:
    """How one stock stands now, and what has happened to it."""

    size: int  # warm ones that are kept
    ready: int = 0
    making: int = 0
    claimed: int = 0
    ending: int = 0  # of claims that are over
    waiting: int = 0  # claims
    made: int = 0
    lost: int = 0  # warm ones that ended without having been claimed
    failed: int = 0  # tries to make one
    last_error: str = ""  # of the last try, if that failed


class Stock:
    """`make` makes one sandbox; `places` bounds how many are made at once, in all stocks; `most` how many there are."""

    def __init__(
        self,
        name: str,
        size: int,
        make: Callable[[], Awaitable[WarmSandbox]],
        places: asyncio.Semaphore,
        workers: int,
        most: int,
    ) -> None:
        self.name = name
        self.size = size
        self._make = make
        self._places = places
        self._max_workers = workers
        self._most = most
        self._ready: deque[WarmSandbox] = deque()
        self._waiting: deque[asyncio.Future[WarmSandbox]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._making = self._claimed = self._ending = self._made = self._lost = self._failed = 0
        self._failed_in_row = 0
        self._lost_in_row = 0  # since one was claimed
        self._last_error: Exception | None = None

    # Claims

    async def take(self, limit_s: float) -> WarmSandbox:
        """One that is ready. Raises NoSandboxError, PoolClosedError. Each needs `end_claim`, then `forget`."""
        if self._is_closed:
            raise PoolClosedError("the pool is closed")
        while self._ready and self._ready[0].has_ended():
            self._on_lost(self._ready[0])  # and the event loop has not come to it yet
        if not self._ready:
            return await self._wait(limit_s)
        taken = self._ready.popleft()
        taken.unwatch()
        self._claimed += 1
        self._lost_in_row = 0
        self._fill_behind()
        return taken

    async def _wait(self, limit_s: float) -> WarmSandbox:
        waiter: asyncio.Future[WarmSandbox] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.fill()
        try:
            async with asyncio.timeout(limit_s):
                return await waiter
        except TimeoutError:
            self._leave(waiter)
            raise self._explain(limit_s) from self._reason()
        except BaseException:
            self._leave(waiter)
            raise

    def _leave(self, waiter: asyncio.Future[WarmSandbox]) -> None:
        """What came in the same moment has not been used: another may have it."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._claimed -= 1
            self._put(waiter.result())
            self._tell()

    def _explain(self, limit_s: float) -> NoSandboxError:
        error = self._reason()
        reason = getattr(error, "public", "") or str(error) if error is not None else ""
        why = f": {reason}" if reason else "; all are claimed, or still being made"
        return NoSandboxError(
            f"no sandbox {self.name!r} was ready within {limit_s:g} s{why}", detail=getattr(error, "detail", "")
        )

    def end_claim(self) -> None:
        """A claim is over; its container is still there."""
        self._claimed -= 1
        self._ending += 1

    def forget(self) -> None:
        """The container of a claim is gone."""
        self._ending -= 1
        self._tell()
        self.fill()

    # Making

    def _fill_behind(self) -> None:
        """A claim has taken one. Its replacement would cost it half of a small machine, so that comes a moment later,
        unless few are left.
        """
        if len(self._ready) * 2 < self.size:
            self.fill()
        else:
            asyncio.get_running_loop().call_later(_BEHIND_S, self.fill)

    def fill(self) -> None:
        """Have those made that are missing."""
        while not self._is_closed and len(self._workers) < min(self._max_workers, self._missing()):
            worker = asyncio.get_running_loop().create_task(self._work(), name=f"exeat pool {self.name}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)  # one that was cancelled before it began

    def _missing(self) -> int:
        """How many are to be made, those included that are being made."""
        there = len(self._ready) + self._claimed + self._ending
        return min(self.size + len(self._waiting) - len(self._ready), self._most - there)

    async def _work(self) -> None:
        try:
            while self._missing() > self._making:
                async with self._places:
                    if self._missing() > self._making:
                        await self._make_one()
                if failures := self._failures():
                    await asyncio.sleep(_pause(failures))
        finally:
            # At once: whoever calls `fill` next has to know that this one does nothing more.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _make_one(self) -> None:
        self._making += 1
        try:
            made = await self._make()
        except Exception as error:  # whatever it is: who waits is told, and it is tried again
            self._failed += 1
            self._failed_in_row += 1
            self._last_error = error
        else:
            self._made += 1
            self._failed_in_row, self._last_error = 0, None
            self._put(made)
        finally:
            self._making -= 1
            self._tell()

    def _failures(self) -> int:
        """Tries in a row that were in vain. A restarted engine loses the whole stock, once; more than that were lost
        soon after they had been made, and so will be the next.
        """
        return self._failed_in_row + max(0, self._lost_in_row - self.size)

    def _reason(self) -> Exception | None:
        if self._last_error is None and self._lost_in_row > self.size:
            return JailError(f"sandboxes {self.name!r} end as soon as they have been made")
        return self._last_error

    def _put(self, warm: WarmSandbox) -> None:
        """To the claim that has waited longest, else into the stock."""
        if self._is_closed or warm.is_lost:
            warm.throw_away()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._claimed += 1
                waiter.set_result(warm)
                return
        self._ready.append(warm)
        warm.watch(self._on_lost)
        self._tell()

    def _on_lost(self, warm: WarmSandbox) -> None:
        if warm in self._ready:
            self._ready.remove(warm)
            self._lost += 1
            self._lost_in_row += 1
        warm.throw_away()
        self._tell()
        self.fill()

    # The whole

    async def reach(self, count: int) -> None:
        """Wait until so many are ready. Raises what kept the last one from being made, if that fails three times."""
        while len(self._ready) < count and not self._is_closed:
            if self._failures() >= _TRIES and (reason := self._reason()) is not None:
                raise reason
            self._changed.clear()
            await self._changed.wait()

    async def emptied(self) -> None:
        """Wait until no claim has one, and none of a claim is left."""
        while self._claimed or self._ending:
            self._changed.clear()
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()

    def close(self) -> list[asyncio.Task[None]]:
        """No more are made. What is under way ends by these tasks."""
        self._is_closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(PoolClosedError("the pool was closed"))
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        ending = [warm.throw_away() for warm in self._ready]
        self._ready.clear()
        self._tell()
        return workers + ending

    def stats(self) -> StockStats:
        error = self._reason()
        return StockStats(
            size=self.size,
            ready=len(self._ready),
            making=self._making,
            claimed=self._claimed,
            ending=self._ending,
            waiting=len(self._waiting),
            made=self._made,
            lost=self._lost,
            failed=self._failed,
            last_error=str(error) if error is not None else "",
        )


def _pause(failures: int) -> float:
    longest: float = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - so that pools do not try in step
