"""Tools for the images of the tests, and a program that builds one."""

from __future__ import annotations

import asyncio
import json
import sys

from exeat import Registry, SandboxBuilder, SandboxConfig
from exeat.engine.client import Engine

try:
    import exeat_greeting  # type: ignore[import-not-found]  # in the sandbox only
except ImportError:
    exeat_greeting = None

tools = Registry()
COUNT = 2


@tools.tool(sandbox="default")
def greet(name: str) -> str:
    return json.dumps([exeat_greeting.greet(name)] * COUNT)


@tools.tool(sandbox="default")
async def wait(seconds: float = 0) -> float:
    await asyncio.sleep(seconds)
    return seconds


@tools.tool(sandbox="short")
def plain(text: str) -> str:
    return text


@tools.tool(sandbox="lost")
def lost(text: str) -> str:
    return str(SandboxConfig(text))


if __name__ == "__main__":
    where, kind, base, sandbox, *needed = sys.argv[1:]
    tools.register_sandbox(SandboxConfig(sandbox, needed, base))
    builder = SandboxBuilder(tools, Engine(where, kind), on_progress=lambda line: print(line, flush=True))
    print("image", asyncio.run(builder.ensure_sandbox(sandbox)))
