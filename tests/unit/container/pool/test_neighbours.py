"""Two claims of one pool without an engine: each has what is its own, at the same time, and keeps it to itself."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exeat.container.pool.claim import ClaimedSandbox
from exeat.container.pool.sandbox_pool import SandboxPool
from exeat.sources import make_policy
from tests.support.log_files import read
from tests.support.origins.plain import Origin
from tests.support.pools.fakes import FakeMade, FakeMaker, builder_of


async def made_of(maker: FakeMaker, sandbox: ClaimedSandbox) -> FakeMade:
    number: int = (await sandbox.call("echo")).value["number"]
    return maker.made[number]


async def get(made: FakeMade, url: str) -> int:
    """By the sandbox's own listener; 0 if nothing answers there."""

    def ask() -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)) as connection:
            try:
                connection.request("GET", url)
                return connection.getresponse().status
            except OSError:
                return 0

    return await asyncio.to_thread(ask)


@pytest.mark.threat("T-N20")
def test_a_neighbours_host_is_denied_at_the_same_moment_and_after(tmp_path: Path) -> None:
    origin = Origin()
    hosts = {"ann.test": "127.0.0.1", "bob.test": "127.0.0.1"}
    urls = {name: f"http://{name}.test:{origin.port}/" for name in ("ann", "bob")}
    policies = {name: make_policy([f"{name}.test:{origin.port}"], hosts=hosts) for name in ("ann", "bob")}
    audit = str(tmp_path / "audit.jsonl")

    async def main() -> None:
        maker = FakeMaker()
        async with SandboxPool(builder_of(), {"default": 2}, maker=maker, audit=audit) as pool:
            async with pool.claim(policy=policies["ann"], user="ann") as ann:
                at_ann = await made_of(maker, ann)
                async with pool.claim(policy=policies["bob"], user="bob") as bob:
                    at_bob = await made_of(maker, bob)
                    assert await get(at_ann, urls["ann"]) == 200
                    assert await get(at_bob, urls["bob"]) == 200
                    assert await get(at_ann, urls["bob"]) == 403
                    assert await get(at_bob, urls["ann"]) == 403
                assert await get(at_bob, urls["bob"]) == 0  # a claim that is over has no network
                assert await get(at_ann, urls["ann"]) == 200
            async with pool.claim() as third:  # what its NetworkPolicy says, which is nothing
                made = await made_of(maker, third)
                assert await get(made, urls["ann"]) == 403

    try:
        asyncio.run(main())
    finally:
        origin.close()
    decided: dict[str, set[tuple[str, str]]] = {}
    for line in read(audit):
        if line["event"] == "decision":
            decided.setdefault(line["sandbox"].rpartition("/")[2], set()).add((line["host"], line["verdict"]))
    assert decided["ann"] == {("ann.test", "allow"), ("bob.test", "deny")}
    assert decided["bob"] == {("bob.test", "allow"), ("ann.test", "deny")}


@pytest.mark.threat("T-N21")
def test_each_claim_has_placeholders_and_an_authority_of_its_own() -> None:
    async def main() -> None:
        maker = FakeMaker()
        secrets: dict[str, Any] = {"TOKEN": {"value": "sekrit-value-123", "hosts": ["api.test"]}}
        async with (
            SandboxPool(builder_of(), {"default": 2}, maker=maker) as pool,
            pool.claim(secrets=secrets) as one,
            pool.claim(secrets=secrets) as other,
        ):
            told = [(await made_of(maker, each)).harness for each in (one, other)]
            assert told[0].variables["TOKEN"] != told[1].variables["TOKEN"]
            assert told[0].files["ca-own.pem"] != told[1].files["ca-own.pem"]
            for each in told:
                assert "sekrit" not in f"{each.variables}{each.files}"
            limits = (await one.call_tool("echo", {}, timeout_s=3)).limits  # type: ignore[attr-defined]
            assert limits["timeout_s"] == 3

    asyncio.run(main())
