"""The harness in a hardened container, over the engine's attach stream: what only a container can limit."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from exeat.container.harness.client import HarnessClient
from exeat.container.harness.outcome import HarnessLostError, ToolError
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.engine.owner import labels
from tests.support.engines.base import Base
from tests.support.harnesses import write_image

_TOOLS = """
import os, signal, time

def echo(value):
    return value

def fill(path: str = "."):
    number = 0
    while True:
        with open(f"{path}/{number}", "wb") as file:
            file.write(b"x" * 1_000_000)
        number += 1

def write_file(size: int):
    with open("file", "wb") as file:
        return file.write(b"x" * size)

def children_eat(size: int, count: int):
    for _ in range(count):
        if os.fork() == 0:
            data = bytearray(size)
            for place in range(0, size, 4096):
                data[place] = 1
            time.sleep(1000)
    return [os.waitstatus_to_exitcode(os.wait()[1])]

def multiply():
    count = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(1000)
            count += 1
    except OSError:
        return count

def kill_all():
    os.kill(-1, signal.SIGKILL)
    return "alive"
"""


@pytest.fixture
def image() -> Iterator[Path]:
    """What is mounted into the container; where a rootless engine may go, too."""
    with tempfile.TemporaryDirectory() as name:
        write_image(Path(name), _TOOLS)
        yield Path(name)


@asynccontextmanager
async def _start(engine: Base, folder: Path, host: dict[str, Any]) -> AsyncIterator[HarnessClient]:
    api = Engine(str(engine.socket), engine.kind)
    body = {
        "Image": engine.image,
        "Entrypoint": ["python3", "-I", "-B", "/exeat/harness.py"],
        "Cmd": [],
        "Env": ["TMPDIR=/tmp"],
        "User": "1000:1000",
        "Labels": labels("test"),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "HostConfig": {
            "NetworkMode": "none",
            "AutoRemove": True,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Binds": [f"{folder}:/exeat:ro"],
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=8m,mode=1777"},
            **host,
        },
    }
    box = (await asyncio.to_thread(api.call, "POST", "/containers/create", body=body))["Id"]
    streams = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
    upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
    try:
        answer = await asyncio.to_thread(
            api.request, "POST", f"/containers/{box}/attach", query=streams, headers=upgrade
        )
        await asyncio.to_thread(api.call, "POST", f"/containers/{box}/start")
        client = HarnessClient(answer.connection, is_multiplexed=True, received=answer.take_start())
        try:
            await client.ready(60)
            yield client
        finally:
            await client.aclose()
            answer.close()
    finally:
        await asyncio.to_thread(_remove, api, box)


def _remove(api: Engine, box: str) -> None:
    try:
        api.raw("DELETE", f"/containers/{box}?force=true")
    except EngineError:
        pass  # it has ended, and is gone or about to be


@pytest.mark.threat("T-N11", "T-N12")
def test_what_a_container_limits(engine: Base, image: Path) -> None:
    """Disk, processes, memory and signals: after each attack the next call of the same sandbox gets its answer."""
    engine.give(image)
    has_memory = engine.uid is None or engine.kind == "docker"  # a rootless engine may have no control group of its own
    host: dict[str, Any] = {"PidsLimit": 60, "Memory": 200 << 20, "MemorySwap": 200 << 20} if has_memory else {}

    async def main() -> None:
        async with _start(engine, image, host) as client:
            assert (await client.call("echo", {"value": 1})).value == 1
            with pytest.raises(ToolError, match="No space left on device"):
                await client.call("fill", {})
            assert (await client.call("write_file", {"size": 4_000_000})).value == 4_000_000
            if has_memory:
                assert 30 < (await client.call("multiply", {})).value < 60
                assert (await client.call("echo", {"value": 2})).value == 2
                eaten = await client.call("children_eat", {"size": 100 << 20, "count": 4}, memory_bytes=150 << 20)
                assert eaten.value == [-signal.SIGKILL]
                assert (await client.call("echo", {"value": 3})).value == 3
            if (await client.ready()).scoped:
                assert (await client.call("kill_all", {})).value == "alive"
                assert (await client.call("echo", {"value": 4})).value == 4
            else:
                with pytest.raises(HarnessLostError):
                    await client.call("kill_all", {})

    asyncio.run(main())
