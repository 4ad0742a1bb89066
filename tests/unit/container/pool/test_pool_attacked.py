"""A pool whose program, engine or sandboxes do what they should not: it ends, says why, and wears nothing out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from exeat.container.pool import stock
from exeat.container.pool.claim import ClaimedSandbox
from exeat.container.pool.sandbox_pool import SandboxPool
from exeat.container.pool.stock import NoSandboxError, PoolClosedError
from exeat.container.pool.threads import Threads
from exeat.errors import ExeatError
from tests.support.pools.fakes import FakeHarness, FakeMade, FakeMaker, builder_of

_SECRET = {"TOKEN": {"value": "sekrit-value-123", "hosts": ["api.test"]}}


def pool_of(maker: FakeMaker, size: int = 1, **settings: Any) -> SandboxPool:
    return SandboxPool(builder_of(), {"default": size}, maker=maker, **settings)


async def _hold(pool: SandboxPool, has: asyncio.Future[ClaimedSandbox], leave: asyncio.Event) -> None:
    async with pool.claim("default") as sandbox:
        has.set_result(sandbox)
        await leave.wait()


def test_closing_ends_sandboxes_that_are_claimed() -> None:
    async def main() -> None:
        maker = FakeMaker()
        pool = pool_of(maker, 2)
        await pool.open()
        has: asyncio.Future[ClaimedSandbox] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()
        holding = asyncio.create_task(_hold(pool, has, leave))
        sandbox = await has
        port = maker.made[(await sandbox.call("echo")).value["number"]].port
        await (await _connect(port)).wait_closed()  # its gateway listens
        await pool.aclose()
        assert maker.left == []
        with pytest.raises(PoolClosedError):
            await sandbox.call("echo")
        with pytest.raises(ConnectionRefusedError):
            await _connect(port)
        leave.set()
        await holding  # leaving the block afterwards is no error
        stats = pool.stats()["default"]
        assert (stats.claimed, stats.ending) == (0, 0)

    asyncio.run(main())


async def _connect(port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    return writer


def test_closing_waits_for_a_claim_that_is_being_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        binding, go_on = asyncio.Event(), asyncio.Event()

        async def bind(self: FakeHarness, variables: Mapping[str, str], files: Mapping[str, bytes]) -> None:
            binding.set()
            await go_on.wait()

        monkeypatch.setattr(FakeHarness, "bind", bind)
        maker = FakeMaker()
        pool = pool_of(maker, 1)
        await pool.open()
        claiming = asyncio.create_task(_use(pool))
        await binding.wait()
        closing = asyncio.create_task(pool.aclose())
        await asyncio.sleep(0.01)
        go_on.set()
        await closing
        assert maker.left == []
        with pytest.raises(PoolClosedError):
            await claiming

    asyncio.run(main())


async def _use(pool: SandboxPool) -> None:
    async with pool.claim("default", secrets=_SECRET) as sandbox:
        await sandbox.call("echo")


def test_an_error_that_was_not_foreseen_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's answer that lacks a field, no room for a thread: none is waited for without end."""
    monkeypatch.setattr(stock, "_LONGEST_PAUSE_S", 0.001)

    async def main() -> None:
        maker = FakeMaker(fails=[KeyError("Id"), RuntimeError("can't start new thread")])
        async with asyncio.timeout(30), pool_of(maker) as pool:
            await pool.filled()
            assert pool.stats()["default"].failed == 2
        maker = FakeMaker(fails=[KeyError("Id")] * 100)
        with pytest.raises(KeyError):
            async with asyncio.timeout(30), pool_of(maker):
                pass
        assert maker.left == []

    asyncio.run(main())


def test_a_thread_that_cannot_be_started_is_no_work_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        threads = Threads()
        assert await threads.start(lambda: 7) == 7
        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", _no_room)
            with pytest.raises(RuntimeError, match="new thread"):
                await threads.start(lambda: 7)
        assert await threads.finished(30)

    asyncio.run(main())


def _no_room(thread: object) -> None:
    raise RuntimeError("can't start new thread")


def test_sandboxes_that_die_as_soon_as_they_are_ready_are_not_made_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stock, "_FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(stock, "_LONGEST_PAUSE_S", 3600.0)

    class Mortal(FakeHarness):
        async def ready(self, timeout_s: float) -> None:
            if self._made.number >= 2:
                asyncio.get_running_loop().call_later(0.001, self._made.end)

    def open_mortal(made: FakeMade) -> FakeHarness:
        return Mortal(made)

    monkeypatch.setattr(FakeMade, "open_harness", open_mortal)

    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 2, at_once=2) as pool:
            await pool.filled()
            for made in maker.made[:2]:
                made.end()  # these are replaced at once
            while pool.stats()["default"].lost < 4:  # noqa: ASYNC110 - their successors have died, too
                await asyncio.sleep(0.001)
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert len(maker.made) <= 2 + 2 + 2
            with pytest.raises(NoSandboxError, match="as soon as"):
                async with pool.claim("default", timeout_s=0.01):
                    pass

    asyncio.run(main())


def test_what_an_image_says_before_it_is_ready_is_no_order_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "_LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(FakeMade, "why_silent", lambda made: "first\x1b[2J\nsecond\x07")

    async def main() -> None:
        with pytest.raises(ExeatError) as caught:
            async with pool_of(FakeMaker(breaks_in_ready=True)):
                pass
        assert caught.value.__notes__ == ["first?[2J\nsecond?"]

    asyncio.run(main())


def test_a_limit_of_zero_is_not_the_usual_one() -> None:
    async def main() -> None:
        async with pool_of(FakeMaker()) as pool, pool.claim("default") as sandbox:
            usual = (await sandbox.call("echo")).limits  # type: ignore[attr-defined]
            assert usual["output_bytes"] == 1 << 20
            zero = await sandbox.call_tool("echo", {}, timeout_s=0, memory_bytes=0, output_bytes=0)
            for name in ("timeout_s", "memory_bytes", "output_bytes"):
                assert zero.limits[name] == 0  # type: ignore[attr-defined]

    asyncio.run(main())
