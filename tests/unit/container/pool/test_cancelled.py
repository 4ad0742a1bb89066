"""A program that is cancelled in the middle of a pool: at any moment, every sandbox is ended, and no work goes on.

A moment is something that has happened, never a time that has passed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

import pytest
import uvloop

from exeat.container.pool import made, sandbox_pool
from exeat.container.pool.binding import PoolTrust
from exeat.container.pool.sandbox_pool import SandboxPool
from tests.support.pools.fakes import FakeHarness, FakeMaker, builder_of

Run = Callable[[Coroutine[Any, Any, None]], None]
Found = Callable[[], object]

_SECRET = {"TOKEN": {"value": "sekrit-value-123", "hosts": ["api.test"]}}
_MANY = 200  # more than a program's whole way through a pool has steps


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    runner: Run = asyncio.run if request.param == "asyncio" else uvloop.run
    return runner


@pytest.fixture(scope="module")
def trust() -> PoolTrust:
    return PoolTrust()


def pool_of(maker: FakeMaker | None, size: int = 1) -> SandboxPool:
    return SandboxPool(builder_of(), {"default": size}, maker=maker)


async def until(what: Found) -> None:
    while not what():  # noqa: ASYNC110 - some of it happens in threads
        await asyncio.sleep(0.001)


def others() -> list[asyncio.Task[Any]]:
    return [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]


async def use(pool: SandboxPool) -> None:
    async with pool, pool.claim("default", secrets=_SECRET) as sandbox:
        await sandbox.call("echo")


@coroutine
def cancelled_at(step: int, work: Awaitable[None], *, late: bool) -> Generator[Any, Any, int]:
    """Do it, and cancel this task where it waits for the `step`-th time: at once, or as what it waits for comes.

    Returns how often it waited.
    """
    task = asyncio.current_task()
    assert task is not None
    inner, waited = work.__await__(), 0
    try:
        what = next(inner)
        while True:
            waited += 1
            if waited == step and late and what is not None:
                what.add_done_callback(lambda _: task.cancel())
                # The task has a callback of its own from here on, which comes after this one.
            elif waited == step:
                task.cancel()
            try:
                value = yield what
            except BaseException as error:
                what = inner.throw(error)
            else:
                what = inner.send(value)
    except StopIteration:
        return waited


@pytest.mark.parametrize("late", [False, True], ids=["while it waits", "as it comes"])
def test_at_each_step_of_the_way(run: Run, late: bool, trust: PoolTrust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_pool, "PoolTrust", lambda _: trust)

    async def main() -> None:
        for step in range(1, _MANY):
            maker = FakeMaker()
            task = asyncio.ensure_future(cancelled_at(step, use(pool_of(maker)), late=late))
            await asyncio.wait([task])
            assert maker.left == [], step
            assert others() == [], step
            assert maker.is_closed or not maker.made, step
            if not task.cancelled():
                assert task.result() < step
                assert step > 5
                return
        raise AssertionError("it never came to an end")

    run(main())


async def _hold(pool: SandboxPool) -> None:
    async with pool, pool.claim("default"):
        await asyncio.sleep(3600)


async def _claim_two(pool: SandboxPool, maker: FakeMaker) -> None:
    async with pool:
        maker.gate.clear()
        async with pool.claim("default"), pool.claim("default"):
            pass


async def _close_with_one_that_hangs(pool: SandboxPool, maker: FakeMaker) -> None:
    async with pool, pool.claim("default"):
        maker.closing.clear()


def _moments(maker: FakeMaker, pool: SandboxPool) -> dict[str, tuple[Coroutine[Any, Any, None], Found]]:
    """By name: what is done, and when it has come there."""

    def stands(what: str) -> Found:
        return lambda: "default" in pool.stats() and getattr(pool.stats()["default"], what)

    return {
        "making": (use(pool), lambda: maker.at_once),
        "becoming ready": (use(pool), lambda: maker.made and maker.made[0].harness.is_asked),
        "using": (_hold(pool), stands("claimed")),
        "waiting": (_claim_two(pool, maker), stands("waiting")),
        "closing": (_close_with_one_that_hangs(pool, maker), stands("ending")),
    }


@pytest.mark.parametrize("moment", ["making", "becoming ready", "using", "waiting", "closing"])
@pytest.mark.parametrize("times", [1, 3])
def test_while_something_takes_long(run: Run, moment: str, times: int) -> None:
    """And then cancelled again, while it is closed because of the first time."""

    async def main() -> None:
        maker = FakeMaker()
        pool = pool_of(maker)
        if moment == "making":
            maker.gate.clear()
        elif moment == "becoming ready":
            maker.readiness.clear()
        moments = _moments(maker, pool)
        work, there = moments.pop(moment)
        for other, _ in moments.values():
            other.close()
        task = asyncio.create_task(work)
        await until(there)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for each in (maker.gate, maker.closing, maker.readiness):
            each.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert maker.left == []
        assert others() == []

    run(main())


def test_while_the_engine_is_looked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What enters containers is a process of its own: who would end it, if the pool had never heard of it?"""
    looking, found = threading.Event(), threading.Event()
    makers: list[FakeMaker] = []

    def look(builder: object) -> FakeMaker:
        looking.set()
        found.wait(30)
        makers.append(FakeMaker())
        return makers[0]

    monkeypatch.setattr(made, "ContainerMaker", look)

    async def main() -> None:
        task = asyncio.create_task(use(pool_of(None)))
        await until(looking.is_set)
        task.cancel()
        await asyncio.sleep(0)
        found.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each.is_closed for each in makers] == [True]
        assert others() == []

    run(main())


def test_one_that_is_lost_just_then_is_waited_for_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is thrown away by no claim and no stock: its container ends by a task that was started on the side."""

    async def main() -> None:
        go_on = asyncio.Event()

        async def wait(harness: FakeHarness) -> None:
            await go_on.wait()

        maker = FakeMaker()
        pool = pool_of(maker)
        await pool.open()
        monkeypatch.setattr(FakeHarness, "aclose", wait)
        maker.gate.clear()
        maker.made[0].end()
        await until(lambda: pool.stats()["default"].lost)
        asyncio.get_running_loop().call_later(0.05, go_on.set)  # its connection takes long to close
        maker.gate.set()
        await pool.aclose()
        assert maker.left == []
        assert others() == []

    run(main())
