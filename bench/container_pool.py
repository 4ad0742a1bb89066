"""Claims from a warm pool: how long until a tool has answered, how fast sandboxes are replaced, what idle ones cost."""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.install import say
from exeat.container.builder import SandboxBuilder
from exeat.container.pool.sandbox_pool import SandboxPool
from exeat.container.registry import Registry
from exeat.container.sandbox_config import SandboxConfig, SandboxLimits
from exeat.engine.client import Engine
from exeat.engine.owner import labels

RULES = ("api.example.com", "*.example.org")
SIZE = 8
AT_ONCE = 50
IDLE = 50
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def answer(number: int) -> int:
    """The tool: it says what it was told, so that an answer for another claim would show."""
    return number


@dataclass(slots=True)
class Pooled:
    """All that was measured. Times are in milliseconds, rates per second."""

    at_rest: list[float] = field(default_factory=list)
    in_turn: list[float] = field(default_factory=list)
    at_once: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: int = 0
    made_per_s: float = 0.0
    engine_per_s: float = 0.0
    idle_kb: float = 0.0


def secrets_of(number: int) -> dict[str, dict[str, object]]:
    """Two, other ones for every claim."""
    hosts = ["api.example.com"]
    return {name: {"value": f"live-{name}-{number:08}-value", "hosts": hosts} for name in ("FIRST_KEY", "SECOND_KEY")}


def builder_for(image: str) -> SandboxBuilder:
    registry = Registry()
    limits = SandboxLimits(cpus=float(os.cpu_count() or 1))
    registry.register_sandbox(SandboxConfig("default", base_image=image, limits=limits))
    registry.tool(answer)
    return SandboxBuilder(registry)


@asynccontextmanager
async def pool_of(builder: SandboxBuilder, size: int, audit: str) -> AsyncIterator[SandboxPool]:
    async with SandboxPool(builder, {"default": size}, audit=audit, claim_s=120) as pool:
        await pool.filled()
        yield pool


async def claim_once(pool: SandboxPool, number: int, found: Pooled) -> float:
    """From asking for a sandbox to the tool's answer; policy, two secrets and a certificate authority are bound."""
    began = time.perf_counter()
    try:
        async with pool.claim(policy=RULES, secrets=secrets_of(number), user=f"user-{number}") as sandbox:
            result = await sandbox.call("answer", number=number)
            took = (time.perf_counter() - began) * 1e3
            found.wrong += result.value != number
            return took
    except Exception as error:
        say(f"a claim failed: {error}")
        found.failed += 1
        return float("nan")


async def measure_claims(builder: SandboxBuilder, audit: str, found: Pooled, *, in_turn: int, at_rest: int) -> None:
    async with pool_of(builder, SIZE, audit) as pool:
        for number in range(at_rest):
            await pool.filled()
            found.at_rest.append(await claim_once(pool, number, found))
        await pool.filled()
        for number in range(in_turn):
            await _one_ready(pool)
            found.in_turn.append(await claim_once(pool, number, found))


async def _one_ready(pool: SandboxPool) -> None:
    while not pool.stats()["default"].ready:
        await asyncio.sleep(0.002)


async def measure_at_once(builder: SandboxBuilder, audit: str, found: Pooled) -> None:
    async with pool_of(builder, AT_ONCE, audit) as pool:
        found.at_once += await asyncio.gather(*(claim_once(pool, number, found) for number in range(AT_ONCE)))


async def measure_idle(builder: SandboxBuilder, audit: str, found: Pooled) -> None:
    """What the program grows by, from a pool of two to one of many. Both are warm; nothing is claimed."""
    sizes = []
    for size in (2, IDLE):
        async with pool_of(builder, size, audit) as pool:
            gc.collect()
            await asyncio.sleep(1)
            sizes.append(_rss_kb())
            assert pool.stats()["default"].ready == size
    found.idle_kb = (sizes[1] - sizes[0]) / (IDLE - 2)


def _rss_kb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE_KB


async def measure_refill(builder: SandboxBuilder, audit: str, found: Pooled, *, count: int) -> None:
    """Sandboxes that the pool makes, against containers that the same engine starts and removes by itself."""
    image = await builder.ensure_sandbox("default")
    workers = min(4, os.cpu_count() or 1)
    for _ in range(2):
        began = time.perf_counter()
        async with pool_of(builder, 0, audit) as pool:
            began = time.perf_counter()

            async def empty(share: int, pool: SandboxPool = pool) -> None:
                for _ in range(share):
                    async with pool.claim():
                        pass

            await asyncio.gather(*(empty(count // workers) for _ in range(workers)))
            found.made_per_s = max(found.made_per_s, count / (time.perf_counter() - began))
        began = time.perf_counter()
        share = partial(_start_and_remove, builder.engine, image, count // workers)
        await asyncio.gather(*(asyncio.to_thread(share) for _ in range(workers)))
        found.engine_per_s = max(found.engine_per_s, count / (time.perf_counter() - began))


def _start_and_remove(engine: Engine, image: str, count: int) -> None:
    host = {"NetworkMode": "none", "AutoRemove": True, "LogConfig": {"Type": "none"}, "ReadonlyRootfs": True}
    for _ in range(count):
        body: dict[str, Any] = {"Image": image, "Entrypoint": ["sleep", "60"], "HostConfig": host}
        made = engine.call("POST", "/containers/create", body=body | {"Labels": labels("pool")})["Id"]
        engine.call("POST", f"/containers/{made}/start")
        engine.call("DELETE", f"/containers/{made}", query={"force": True})


def measure_pool(image: str, audit: str, *, claims: int, replaced: int) -> Pooled:
    found = Pooled()
    builder = builder_for(image)
    say("idle sandboxes")
    asyncio.run(measure_idle(builder, audit, found))
    say("claims")
    asyncio.run(measure_claims(builder, audit, found, in_turn=claims, at_rest=claims // 4))
    say(f"{AT_ONCE} claims at once")
    asyncio.run(measure_at_once(builder, audit, found))
    say("replacing sandboxes")
    asyncio.run(measure_refill(builder, audit, found, count=replaced))
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(len(ordered) * share))]


def middle(values: list[float]) -> float:
    return statistics.median(values)
