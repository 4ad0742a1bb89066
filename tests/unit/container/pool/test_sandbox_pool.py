"""The pool without an engine: who gets which sandbox, when others are made, and what is left when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from exeat.container.pool import stock
from exeat.container.pool.sandbox_pool import SandboxPool
from exeat.container.pool.stock import NoSandboxError, PoolClosedError
from exeat.engine.errors import EngineError, NotFoundError
from exeat.errors import ConfigError, ExeatError
from tests.support.pools.fakes import FakeMaker, builder_of

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Both loops: the program's may be either. Pauses are short."""
    monkeypatch.setattr(stock, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(stock, "_LONGEST_PAUSE_S", 0.01)
    runner: Run = asyncio.run if request.param == "asyncio" else uvloop.run
    return runner


def pool_of(maker: FakeMaker, size: int = 2, *rules: str, **settings: Any) -> SandboxPool:
    return SandboxPool(builder_of(*rules), {"default": size}, maker=maker, **settings)


def test_a_sandbox_is_claimed_once_thrown_away_and_replaced(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 2) as pool:
            numbers = []
            for _ in range(5):
                async with pool.claim("default") as sandbox:
                    result = await sandbox.call("echo", text="hello")
                    assert result.value["text"] == "hello"
                    numbers.append(result.value["number"])
            assert len(set(numbers)) == 5
            await pool.filled()
            stats = pool.stats()["default"]
            assert (stats.ready, stats.claimed, stats.waiting) == (2, 0, 0)
            assert all(maker.made[number].is_closed for number in numbers)
        assert maker.left == []
        assert maker.is_closed

    run(main())


def test_many_claims_at_once_each_have_their_own_and_making_is_bounded(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 3, at_once=2) as pool:

            async def use(number: int) -> tuple[int, int]:
                async with pool.claim("default") as sandbox:
                    value = (await sandbox.call("echo", mine=number)).value
                    await asyncio.sleep(0.001)
                    return value["mine"], value["number"]

            got = await asyncio.gather(*(use(number) for number in range(40)))
            assert [mine for mine, _ in got] == list(range(40))
            assert len({number for _, number in got}) == 40
            assert maker.most_at_once <= 2
        assert maker.left == []

    run(main())


def test_no_more_than_the_most_are_there_at_once(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 1, most=3) as pool:

            async def use() -> None:
                async with pool.claim("default"):
                    assert len(maker.left) <= 3
                    await asyncio.sleep(0.001)

            await asyncio.gather(*(use() for _ in range(12)))
            assert len(maker.made) >= 12
        assert maker.left == []

    run(main())


def test_a_lost_warm_sandbox_is_noticed_and_replaced(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 2) as pool:
            await pool.filled()
            for made in list(maker.made):
                made.end()
            # At once, before the loop has heard of it: none of the lost is handed out.
            async with pool.claim("default") as sandbox:
                assert (await sandbox.call("echo")).value["number"] >= 2
            await pool.filled()
            assert pool.stats()["default"].lost == 2
            assert maker.made[0].is_closed
            assert maker.made[1].is_closed

    run(main())


def test_claims_wait_while_the_engine_is_away_and_go_on_when_it_is_back(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 1) as pool:
            maker.is_down = True
            maker.made[0].end()
            while not pool.stats()["default"].failed:  # noqa: ASYNC110 - it is tried in a thread
                await asyncio.sleep(0.001)
            with pytest.raises(NoSandboxError, match="the engine does not answer") as caught:
                async with pool.claim("default", timeout_s=0.05):
                    pass
            assert isinstance(caught.value.__cause__, EngineError)
            assert isinstance(caught.value, TimeoutError)
            assert pool.stats()["default"].failed > 0
            assert "does not answer" in pool.stats()["default"].last_error
            waiting = asyncio.create_task(_number_of(pool))
            await asyncio.sleep(0.01)
            maker.is_down = False
            assert await waiting >= 1
            assert pool.stats()["default"].last_error == ""

    run(main())


async def _number_of(pool: SandboxPool) -> int:
    async with pool.claim("default") as sandbox:
        number: int = (await sandbox.call("echo")).value["number"]
        return number


def test_an_image_that_was_removed_is_made_again(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker(fails=[NotFoundError("no such image", status=404)])
        async with pool_of(maker, 1):
            assert maker.prepared == ["default", "default"]

    run(main())


def test_a_pool_that_cannot_make_one_does_not_open(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker(is_down=True)
        with pytest.raises(EngineError):
            async with pool_of(maker, 1):
                pass
        maker = FakeMaker(breaks_in_ready=True)
        with pytest.raises(ExeatError) as caught:
            async with pool_of(maker, 1):
                pass
        assert "python3: not found" in caught.value.__notes__
        assert maker.left == []

    run(main())


_SECRET = {"TOKEN": {"value": "sekrit-value-123", "hosts": ["api.test"]}}


def test_a_claim_that_cannot_be_bound_costs_its_sandbox_and_no_one_else(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker(breaks_in_bind=True)
        async with pool_of(maker, 1) as pool:
            with pytest.raises(ExeatError, match="was lost"):
                async with pool.claim("default", secrets=_SECRET):
                    pass
            async with pool.claim("default") as sandbox:  # without secrets there is nothing to bind
                assert (await sandbox.call("echo")).value["number"] > 0
        assert maker.left == []

    run(main())


def test_what_cannot_be_used_is_refused_before_a_sandbox_is_taken(run: Run) -> None:
    async def main() -> None:
        maker = FakeMaker()
        async with pool_of(maker, 1) as pool:
            for terms in (
                {"policy": "api.test"},
                {"policy": ["*.com"]},
                {"policy": ["localhost:8080"]},
                {"policy": ["127.0.0.1:8080"]},
                {"secrets": {"TOKEN": {"value": "sekrit-value-123"}}},
                {"secrets": {"TOKEN": {"env": "EXEAT_TEST_NOT_SET", "hosts": ["api.test"]}}},
            ):
                with pytest.raises(ConfigError) as caught:
                    async with pool.claim("default", **terms):
                        pass
                assert "sekrit" not in str(caught.value)
            with pytest.raises(ValueError, match="no sandbox 'other'"):
                async with pool.claim("other"):
                    pass
            assert pool.stats()["default"].claimed == 0
            assert len(maker.made) == 1
        with pytest.raises(PoolClosedError):
            async with pool.claim("default"):
                pass

    run(main())


def test_a_claim_that_is_over_calls_nothing(run: Run) -> None:
    async def main() -> None:
        async with pool_of(FakeMaker(), 1) as pool:
            async with pool.claim("default") as sandbox:
                pass
            with pytest.raises(PoolClosedError, match="over"):
                await sandbox.call("echo")

    run(main())


def test_closing_ends_claims_that_wait_and_engines_that_hang_do_not_hold_it_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exeat.container.pool.sandbox_pool._END_S", 0.05)

    async def main() -> None:
        maker = FakeMaker()
        pool = pool_of(maker, 0)
        await pool.open()
        maker.gate.clear()
        waiting = asyncio.create_task(_number_of(pool))
        await asyncio.sleep(0.01)
        await pool.aclose()
        with pytest.raises(PoolClosedError):
            await waiting
        maker.gate.set()
        while not maker.made or maker.left:  # noqa: ASYNC110 - what comes later is ended as well, in a thread
            await asyncio.sleep(0.001)

    run(main())


def test_one_log_has_the_claims_of_all_and_each_line_says_whose_it_is(run: Run, tmp_path: Path) -> None:
    from exeat.audit.verify import verify_files
    from tests.support.log_files import read

    path = str(tmp_path / "audit.jsonl")

    async def main() -> None:
        async with (
            pool_of(FakeMaker(), 2, audit=path) as pool,
            pool.claim("default", user="ann"),
            pool.claim("default", secrets=_SECRET, user="bob"),
        ):
            pass

    run(main())
    lines = read(path)
    assert "sekrit" not in Path(path).read_text()
    claims = {line["user"]: line for line in lines if line["event"] == "claim"}
    assert claims["bob"]["secrets"] == "TOKEN"
    for user in ("ann", "bob"):
        own = [line["event"] for line in lines if line.get("sandbox") == claims[user]["sandbox"]]
        assert own == ["claim", "start", "claim-end"]
        assert claims[user]["sandbox"].endswith(f"/{user}")
    assert verify_files([path]).ok
    assert not verify_files([path]).open
