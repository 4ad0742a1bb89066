"""Warm sandboxes for tools: `async with SandboxPool(builder, sizes={"default": 8}) as pool`.

Containers are made ahead, all alike. A claim takes one, and gets a gateway of its own in this process: its policy and
its secrets are bound there, so nothing in the container restarts and no secret is ever in it. A sandbox that was
claimed is thrown away and replaced in the background.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from exeat.audit.batch import EventStream
from exeat.audit.journal import Journal, open_journal
from exeat.audit.record import encode_event
from exeat.container.pool.binding import PoolTrust, Rules, SecretSettings, Terms, bind, read_terms
from exeat.container.pool.claim import ClaimedSandbox
from exeat.container.pool.stock import PoolClosedError, Stock, StockStats
from exeat.container.pool.threads import Threads
from exeat.container.pool.warm import Maker, WarmSandbox, make_warm
from exeat.errors import ConfigError
from exeat.gateway.limits import Limits
from exeat.gateway.process import raise_descriptor_limit

if TYPE_CHECKING:
    from exeat.container.builder import SandboxBuilder

_END_S: Final = 30.0  # how long closing waits for an engine that hangs
_MOST: Final = 256


class SandboxPool:
    """`sizes`: how many sandboxes of each name are kept warm. A claim that finds none waits for the next.

    `audit`: where decisions are recorded, one log for all claims. `claim_s`: how long a claim waits for a sandbox.
    `at_once`: how many containers are made at the same time; `most`: how many there are at most of each name, claimed
    ones included. `limits`: what each claim may spend at its gateway. `upstream_ca`: files with more authorities whose
    servers are trusted. `maker`: another way to make sandboxes.
    """

    def __init__(
        self,
        builder: SandboxBuilder,
        sizes: Mapping[str, int],
        *,
        audit: str | None = None,
        claim_s: float = 30.0,
        at_once: int = 0,
        most: int = _MOST,
        limits: Limits | None = None,
        upstream_ca: Sequence[str] = (),
        maker: Maker | None = None,
    ) -> None:
        for name, size in sizes.items():
            builder.registry.sandbox(name)  # UnknownSandboxError, with the known ones
            if not 0 <= size <= most:
                raise ConfigError(f"the size of {name!r} is {size}", where="sizes", expected=f"from 0 to {most}")
        self._registry = builder.registry
        self._builder = builder
        self._sizes = dict(sizes)
        self._audit = audit
        self._claim_s = claim_s
        self._at_once = at_once or min(4, os.cpu_count() or 1)
        self._most = most
        self._limits = limits or Limits()
        self._upstream_ca = tuple(upstream_ca)
        self._maker = maker
        self._threads: Threads
        self._journal: Journal
        self._stocks: dict[str, Stock] = {}
        self._trust: asyncio.Future[PoolTrust] | None = None
        self._claims: dict[ClaimedSandbox, Callable[[], asyncio.Task[None]]] = {}  # how each is ended
        self._ending: set[asyncio.Task[None]] = set()
        self._is_open = False

    # Opening and closing

    async def open(self) -> None:
        """Build missing images, and wait for one sandbox of each name. Raises ExeatError."""
        self._threads = Threads()
        self._journal = open_journal(self._audit)
        raise_descriptor_limit()  # a sandbox has ten
        try:
            maker = await self._find_maker()
            for name in self._sizes:
                await maker.prepare(name)
            await self._journal.commit(encode_event("start", pool=",".join(self._sizes), jail="container"))
            self._load_trust()  # 200 ms, while containers are made
            places = asyncio.Semaphore(self._at_once)
            for name, size in self._sizes.items():
                make = partial(make_warm, name, maker, self._threads)
                self._stocks[name] = Stock(name, size, make, places, self._at_once, self._most)
            self._is_open = True
            for stock in self._stocks.values():
                stock.fill()
            for stock in self._stocks.values():
                await stock.reach(min(stock.size, 1))
        except BaseException:
            await self.aclose()
            raise

    async def _find_maker(self) -> Maker:
        if self._maker is None:
            # It has a process of its own. Whoever is cancelled here finds it when the pool is closed.
            await asyncio.shield(self._threads.start(self._make_containers))
        assert self._maker is not None
        return self._maker

    def _make_containers(self) -> None:
        from exeat.container.pool.made import ContainerMaker  # with an engine

        self._maker = ContainerMaker(self._builder)

    async def filled(self) -> None:
        """Wait until every stock is full. Raises ExeatError if the engine fails again and again."""
        for stock in self._stocks.values():
            await stock.reach(stock.size)

    async def aclose(self) -> None:
        """End every sandbox, claimed ones too. Leaves nothing at the engine, even if this is cancelled."""
        task = asyncio.get_running_loop().create_task(self._close())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        task.result()

    async def _close(self) -> None:
        self._is_open = False
        tasks = [task for stock in self._stocks.values() for task in stock.close()]
        for end in list(self._claims.values()):
            end()
        tasks += self._ending
        # Claims that are being bound end by themselves when they find the pool closed.
        emptied = [asyncio.get_running_loop().create_task(stock.emptied()) for stock in self._stocks.values()]
        if tasks or emptied:
            await asyncio.wait([*tasks, *emptied], timeout=_END_S)
        for task in emptied:
            task.cancel()
        await self._threads.finished(_END_S)
        if self._maker is not None:
            await self._threads.start(self._maker.close)
        self._journal.append(encode_event("stop", pool=",".join(self._sizes)))
        await self._journal.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Claims

    @asynccontextmanager
    async def claim(
        self,
        name: str = "default",
        *,
        policy: Rules | None = None,
        secrets: SecretSettings | None = None,
        user: str = "",
        timeout_s: float | None = None,
    ) -> AsyncIterator[ClaimedSandbox]:
        """A sandbox for this caller alone, until the block ends.

        `policy`: what it may reach, as a Policy or as rules; None: what its NetworkPolicy says. `secrets`: as in a
        secrets file, name by name; the container sees placeholders. `user`: a label for the log. Raises ConfigError for
        invalid arguments, NoSandboxError if none was ready in time.
        """
        if not self._is_open:
            raise PoolClosedError("the pool is not open: use `async with SandboxPool(...)`")
        config = self._registry.sandbox(name)
        stock = self._stock(name)
        assert self._maker is not None
        rules = config.network.rules() if policy is None else policy
        terms = read_terms(rules, secrets, self._maker.places_on_host(name))
        binding = await bind(terms, await self._shared_trust(terms))
        warm = await stock.take(self._claim_s if timeout_s is None else timeout_s)
        claimed = ClaimedSandbox(warm, user, binding, self._journal, self._limits, config.limits)
        end = cache(partial(self._end, claimed, warm, stock))  # once, by the pool or by whoever claimed it
        try:
            await claimed.begin()
            if not self._is_open:
                raise PoolClosedError("the pool was closed")
            self._claims[claimed] = end
            yield claimed
        finally:
            self._claims.pop(claimed, None)
            await asyncio.shield(end())

    def _stock(self, name: str) -> Stock:
        try:
            return self._stocks[name]
        except KeyError:
            raise ConfigError(
                f"the pool has no sandboxes {name!r}", where="claim", expected=f"one of {', '.join(self._stocks)}"
            ) from None

    def _end(self, claimed: ClaimedSandbox, warm: WarmSandbox, stock: Stock) -> asyncio.Task[None]:
        """Goes on if nothing waits for it. The caller waits for the gateway only; the container ends behind it."""
        loop = asyncio.get_running_loop()
        ending = loop.create_task(claimed.end())
        stock.end_claim()

        async def leave() -> None:
            try:
                await asyncio.wait([ending, warm.throw_away()])
            finally:
                stock.forget()

        left = loop.create_task(leave())
        for task in (ending, left):
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return ending

    async def _shared_trust(self, terms: Terms) -> PoolTrust | None:
        if not terms.looks_inside:
            return None
        return await asyncio.shield(self._load_trust())

    def _load_trust(self) -> asyncio.Future[PoolTrust]:
        """Begun once; again if it has failed. Roots that cannot be read concern those who look inside, no one else."""
        if self._trust is None or (self._trust.done() and self._trust.exception() is not None):
            self._trust = self._threads.start(partial(PoolTrust, self._upstream_ca))
        return self._trust

    # What a caller sees

    def stats(self) -> dict[str, StockStats]:
        """How each stock stands."""
        return {name: stock.stats() for name, stock in self._stocks.items()}

    def events(self, *, max_queued: int = 10_000) -> EventStream:
        """The records of all claims from now on: `async for event in pool.events()`."""
        return self._journal.subscribe(max_queued=max_queued)
