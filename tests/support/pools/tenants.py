"""Two tenants of one pool, in a program that runs as whoever has the engine.

`python -m tests.support.pools.tenants SETTINGS` prints what each of them saw, as JSON. What servers saw is the test's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from exeat import NetworkPolicy, Registry, SandboxBuilder, SandboxConfig, SandboxPool, make_policy
from exeat.container.pool.claim import ClaimedSandbox
from exeat.policy import Policy
from tests.support.pools import tools
from tests.support.pools.quick_builder import QuickBuilder

OWN_ADDRESS = "198.51.100.1"
GATEWAY_PORT = 61_080
TOOLS = (
    tools.echo, tools.fetch, tools.variable, tools.address_of, tools.reach, tools.serve,
    tools.abstract_sockets, tools.leave_mark, tools.find_marks, tools.search, tools.ask_dns,
    tools.files_put_there,
)  # fmt: skip


def builder_with_tools(image: str, *, quick: bool = True) -> SandboxBuilder:
    registry = Registry()
    registry.register_sandbox(
        SandboxConfig("default", base_image=image, network=NetworkPolicy(allowed_hosts=("default.test",)))
    )
    for each in TOOLS:
        registry.tool(each)
    return QuickBuilder(registry) if quick else SandboxBuilder(registry)


async def visit(pool: SandboxPool, settings: dict[str, Any]) -> dict[str, Any]:
    """Both at once, each with a host and a secret of their own."""
    hosts = {"ann.test": "127.0.0.1", "bob.test": "127.0.0.1"}

    def policy(name: str) -> Policy:
        return make_policy([f"{name}.test:{settings[name]['port']}"], hosts=hosts)

    def secret(name: str) -> dict[str, dict[str, object]]:
        return {
            "TOKEN": {"value": settings[name]["value"], "hosts": [f"{name}.test:{settings[name]['port']}"]},
            "OTHER": {"value": settings[name]["value"][::-1], "hosts": [f"{name}.test:{settings[name]['port']}"]},
        }

    async with (
        pool.claim("default", policy=policy("ann"), secrets=secret("ann"), user="ann") as ann,
        pool.claim("default", policy=policy("bob"), secrets=secret("bob"), user="bob") as bob,
    ):
        return await attack(ann, bob, settings) | {"ids": [ann.id, bob.id]}


async def attack(ann: ClaimedSandbox, bob: ClaimedSandbox, settings: dict[str, Any]) -> dict[str, Any]:
    """Bob tries to have what is Ann's. Everything that he fails at, she can do."""
    to_ann, to_bob = (f"https://{name}.test:{settings[name]['port']}/" for name in ("ann", "bob"))
    placeholder = await value(ann, "variable", name="TOKEN")
    address = await value(ann, "address_of", name="ann.test")
    port = settings["ann"]["port"]
    seen = {
        "ann.own": await value(ann, "fetch", url=to_ann + "own", token="TOKEN"),
        "bob.own": await value(bob, "fetch", url=to_bob + "own", token="TOKEN"),
        "bob.to.ann": await value(bob, "fetch", url=to_ann + "neighbour", token="TOKEN"),
        "bob.stolen.to.ann": await value(bob, "fetch", url=to_ann + "stolen", token=placeholder),
        "bob.stolen.to.bob": await value(bob, "fetch", url=to_bob + "stolen", token=placeholder),
        "ann.address": address,
        "bob.address": await value(bob, "address_of", name="ann.test"),
        "ann.by.address": await value(ann, "reach", address=address, port=port, name="ann.test"),
        "bob.by.address": await value(bob, "reach", address=address, port=port, name="ann.test"),
        "bob.dns": await value(bob, "ask_dns", name="ann.test", server="127.0.0.1"),
        "ann.dns": await value(ann, "ask_dns", name="ann.test", server="127.0.0.1"),
        "ann.abstract": await value(ann, "abstract_sockets"),
        "ann.files": await value(ann, "files_put_there"),
        "bob.files": await value(bob, "files_put_there"),
        "bob.abstract": await value(bob, "abstract_sockets"),
        "placeholder": placeholder,
        "bob.placeholder": await value(bob, "variable", name="TOKEN"),
    }
    for name in ("ann", "bob"):
        seen[f"{name}.value"] = await value(ann if name == "ann" else bob, "search", needle=settings[name]["value"])
    seen["ann.placeholder.seen"] = await value(ann, "search", needle=placeholder)
    seen["bob.placeholder.seen"] = await value(bob, "search", needle=placeholder)
    serving = asyncio.create_task(value(ann, "serve", port=9_999, guests=2))
    before = await reach_own(ann)
    seen["bob.servers"] = [await value(bob, "reach", address=each, port=9_999) for each in ("127.0.0.1", OWN_ADDRESS)]
    seen["ann.servers"] = [before, await reach_own(ann)]
    seen["ann.guests"] = await serving
    return seen


async def reach_own(ann: ClaimedSandbox) -> str:
    """Her server, once it is there."""
    for _ in range(100):
        answer: str = await value(ann, "reach", address=OWN_ADDRESS, port=9_999)
        if answer != "refused":
            break
    return answer


async def value(sandbox: ClaimedSandbox, tool: str, **arguments: Any) -> Any:
    return (await sandbox.call(tool, **arguments)).value


async def use_twice(pool: SandboxPool) -> dict[str, Any]:
    """One claim leaves what it can; whoever comes next finds nothing of it."""
    async with pool.claim("default") as first:
        left = await value(first, "leave_mark", text="first")
        own = await value(first, "find_marks")
        denied = await value(first, "fetch", url="https://ann.test/")
        unset = await value(first, "variable", name="TOKEN")
    async with pool.claim("default") as second:
        found = await value(second, "find_marks")
    return {"left": left, "own": own, "found": found, "without.policy": denied, "without.secrets": unset}


async def main(settings: dict[str, Any]) -> None:
    builder = builder_with_tools(settings["image"], quick=settings["quick"])
    pool = SandboxPool(builder, {"default": 2}, audit=settings["audit"], upstream_ca=[settings["ca"]])
    async with pool:
        if settings.get("waits"):
            print("ready", flush=True)
            await asyncio.sleep(3600)
        seen = await visit(pool, settings) | await use_twice(pool)
        many = await asyncio.gather(*(one_of_many(pool, number) for number in range(settings["many"])))
        await pool.filled()
        stats = pool.stats()["default"]
    print(json.dumps(seen | {"many": many, "failed": stats.failed, "lost": stats.lost, "waiting": stats.waiting}))


async def one_of_many(pool: SandboxPool, number: int) -> list[str]:
    async with pool.claim("default", user=f"user-{number}") as sandbox:
        return [sandbox.id, await value(sandbox, "echo", text=str(number))]


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
