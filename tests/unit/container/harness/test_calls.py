"""Calls of well-behaved tools, with a real harness: what a caller gets back, and what the tool finds."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from exeat.container.harness.client import HarnessClient
from exeat.container.harness.outcome import (
    CallResult,
    HarnessLostError,
    Limit,
    Stream,
    ToolArgumentsError,
    ToolError,
    ToolLimitError,
    ToolTimeoutError,
    UnknownToolError,
)
from tests.support.harnesses import Started, launch, start_harness, write_image

_TOOLS = """
from __future__ import annotations
import asyncio, os, sys, time
from typing import Any, Literal, Optional

def echo(value):
    return value

def add(a: int, b: int = 2, *, factor: float = 1, names: Optional[list[str]] = None, way: Literal["up", "down"] = "up"):
    return (a + b) * factor

def anything(*, first, **rest: Any):
    return sorted(rest)

async def later(value: str) -> str:
    await asyncio.sleep(0)
    return value

def speak(stdout: str, stderr: str):
    print(stdout)
    print(stderr, file=sys.stderr)
    os.system("echo from a shell")

def fail():
    print("so far")
    inner()

def inner():
    raise LookupError("nothing here \\x1b[31m")

def leave():
    sys.exit(3)

def vanish():
    os._exit(5)

def crash():
    os.abort()

def blob(size: int):
    return b"x" * size

def strange():
    return {1, 2}

def not_a_number():
    return float("nan")

def wait_for(path: str):
    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"

def chatter(count: int):
    for number in range(count):
        print("x" * 1000)

def memory(size: int):
    return len(bytearray(size))

def surroundings(names: list[str]):
    with open(os.environ["CA"]) as file:
        text = file.read()
    found = {name: os.environ.get(name) for name in names}
    return {"text": text, "cwd": os.getcwd(), "files": os.listdir("."), **found}

def leave_files(depth: int):
    with open("file", "w") as file:
        file.write("x")
    os.symlink("/etc", "link")
    for _ in range(depth):
        os.mkdir("folder")
        os.chdir("folder")
    os.chmod(".", 0)

def remember(step: int, seen=[]):
    seen.append(step)
    return seen
"""


def _with_harness(
    test: Callable[[Started], Awaitable[None]], run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
) -> None:
    async def main() -> None:
        async with start_harness(_TOOLS, is_async=("later",)) as started:
            await test(started)

    run(main())


def test_values_come_back() -> None:
    """JSON as it is, bytes as bytes; sync and async; what was written comes apart from the result."""

    async def test(started: Started) -> None:
        call = started.client.call
        hello = await started.client.ready()
        assert {"echo", "add", "later"} <= hello.tools
        values: list[object] = [None, True, 1.5, -(10**20), "ünï\n\0", [], {"a": [1, {"b": "c"}]}]
        for value in values:
            assert (await call("echo", {"value": value})).value == value
        assert (await call("later", {"value": "x"})).value == "x"
        assert (await call("blob", {"size": 1_000_000})).value == b"x" * 1_000_000
        result = await call("speak", {"stdout": "out €", "stderr": "err"})
        assert result == CallResult(None, "out €\nfrom a shell\n", "err\n", result.duration_s)

    _with_harness(test)


def test_each_call_is_a_fresh_process() -> None:
    async def test(started: Started) -> None:
        for step in (1, 2):
            assert (await started.client.call("remember", {"step": step})).value == [step]

    _with_harness(test)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("add", {}, "missing a required argument: 'a'; the tool takes (a: 'int', b: 'int' = 2"),
        ("add", {"a": 1, "c": 2}, "unexpected keyword argument 'c'"),
        ("add", {"a": "1"}, "the argument 'a' must be int, not str"),
        ("add", {"a": True}, "the argument 'a' must be int, not bool"),
        ("add", {"a": 1, "names": "x"}, "the argument 'names' must be typing.Optional[list[str]], not str"),
        ("add", {"a": 1, "way": "left"}, "the argument 'way' must be typing.Literal['up', 'down'], not str"),
    ],
)
def test_arguments_that_do_not_fit(tool: str, arguments: dict[str, object], said: str) -> None:
    async def test(started: Started) -> None:
        with pytest.raises(ToolArgumentsError) as caught:
            await started.client.call(tool, arguments)
        assert said in caught.value.message

    _with_harness(test)


def test_arguments_that_fit() -> None:
    async def test(started: Started) -> None:
        call = started.client.call
        assert (await call("add", {"a": 1, "factor": 2, "names": None, "way": "down"})).value == 6
        assert (await call("add", {"a": 1, "factor": 1.5, "names": ["x"]})).value == 4.5
        assert (await call("anything", {"first": 1, "b": 2, "a": []})).value == ["a", "b"]
        with pytest.raises(TypeError):
            await call("echo", {"value": object()})
        with pytest.raises(ValueError, match="memory_bytes must be a whole number of at least"):
            await call("echo", {"value": 1}, memory_bytes=1)

    _with_harness(test)


def test_errors() -> None:
    """An exception comes with its traceback, which shows the tool and nothing of the harness."""

    async def test(started: Started) -> None:
        call = started.client.call
        with pytest.raises(ToolError) as caught:
            await call("fail", {})
        error = caught.value
        assert (error.type, error.message, error.stdout) == ("LookupError", "nothing here \x1b[31m", "so far\n")
        assert "in inner" in error.traceback
        assert "harness.py" not in error.traceback
        assert str(error) == "LookupError: nothing here ?[31m"  # safe to print
        for tool, kind in (
            ("leave", "SystemExit"),
            ("vanish", "NoAnswer"),
            ("crash", "Died"),
            ("strange", "TypeError"),
            ("not_a_number", "TypeError"),
        ):
            with pytest.raises(ToolError) as caught:
                await call(tool, {})
            assert caught.value.type == kind
            assert tool != "vanish" or "ended with status 5 without an answer" in str(caught.value)
        with pytest.raises(UnknownToolError, match="it has: add, anything"):
            await call("none", {})
        assert (await call("echo", {"value": 1})).value == 1  # the sandbox goes on

    _with_harness(test)


@pytest.mark.thorough
def test_limits() -> None:
    async def test(started: Started) -> None:
        call = started.client.call
        with pytest.raises(ToolTimeoutError) as late:
            await call("wait_for", {"path": "/none"}, timeout_s=2)
        assert late.value.stdout == "waiting\n"
        with pytest.raises(ToolLimitError) as caught:
            await call("chatter", {"count": 10_000_000}, output_bytes=5000)
        assert (caught.value.limit, len(caught.value.stdout)) == (Limit.OUTPUT, 5000)
        with pytest.raises(ToolLimitError) as caught:
            await call("blob", {"size": 100_001}, result_bytes=100_000)
        assert caught.value.limit is Limit.RESULT
        with pytest.raises(ToolLimitError) as caught:
            await call("memory", {"size": 200 << 20}, memory_bytes=100 << 20)
        assert caught.value.limit is Limit.MEMORY
        # The control: exactly as much as it may.
        assert len((await call("chatter", {"count": 5}, output_bytes=5005)).stdout) == 5005
        assert len((await call("blob", {"size": 100_000}, result_bytes=100_000)).value) == 100_000
        assert (await call("memory", {"size": 200 << 20}, memory_bytes=400 << 20)).value == 200 << 20

    _with_harness(test)


def test_output_comes_as_it_is_written(tmp_path: Path) -> None:
    """The tool goes on only after its first line was seen. Half a character is put together with its other half."""

    async def test(started: Started) -> None:
        go = started.scratch / "go"
        seen: list[tuple[Stream, str]] = []

        def on_output(stream: Stream, text: str) -> None:
            seen.append((stream, text))
            go.touch()

        result = await started.client.call("wait_for", {"path": str(go)}, on_output=on_output)
        assert (result.value, seen) == ("seen", [(Stream.STDOUT, "waiting\n")])

        def fail(stream: Stream, text: str) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await started.client.call("wait_for", {"path": "/none"}, on_output=fail)
        assert (await started.client.call("echo", {"value": 1})).value == 1

    _with_harness(test)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_several_at_once_and_one_cancelled(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """In either event loop."""

    async def test(started: Started) -> None:
        call = started.client.call
        go = started.scratch / "go"
        began = asyncio.Event()
        waiting = asyncio.create_task(call("wait_for", {"path": str(go)}, on_output=lambda *_: began.set()))
        doomed = asyncio.create_task(call("wait_for", {"path": "/none"}))
        async with asyncio.timeout(60):
            await began.wait()
        results = await asyncio.gather(*(call("echo", {"value": number}) for number in range(10)))
        assert [result.value for result in results] == list(range(10))
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        go.touch()
        assert (await waiting).value == "seen"

    _with_harness(test, run)


def test_what_is_bound_reaches_calls() -> None:
    """Also the process that was waiting for its call when it was bound."""

    async def test(started: Started) -> None:
        await started.client.bind({"TOKEN": "placeholder", "CA": "{files}/ca.pem"}, {"ca.pem": b"roots", "empty": b""})
        names = ["TOKEN", "CA", "TMPDIR", "HOME"]
        found = (await started.client.call("surroundings", {"names": names})).value
        assert (found["text"], found["TOKEN"], found["files"], found["HOME"]) == ("roots", "placeholder", [], None)
        assert found["TMPDIR"] == found["cwd"]
        for name in ("", "..", "a/b", "a\0b"):
            with pytest.raises(ValueError, match="cannot be the name of a file"):
                await started.client.bind({}, {name: b""})
        with pytest.raises(ValueError, match="cannot be a variable"):
            await started.client.bind({"A=B": ""}, {})

    _with_harness(test)


@pytest.mark.thorough
def test_the_folder_of_a_call_is_removed() -> None:
    """However deep, and whatever its permissions."""

    async def test(started: Started) -> None:
        await started.client.call("leave_files", {"depth": 3000})
        await asyncio.to_thread(_wait_until_swept, next(started.scratch.iterdir()))

    _with_harness(test)


def _wait_until_swept(base: Path) -> None:
    """Until there is one folder at most, and an empty one: that of the process that waits for a call."""
    while len([*base.iterdir()]) > 1 or [*base.glob("*/*")]:
        time.sleep(0.01)


def test_over_pipes() -> None:
    """The harness takes any two descriptors; here the client's socket is joined to pipes by copying."""

    async def main(folder: Path) -> None:
        import socket

        scratch = write_image(folder, _TOOLS)
        to_harness, from_client = os.pipe()
        to_client, from_harness = os.pipe()
        process = launch(folder, scratch, to_harness, from_harness)
        os.close(to_harness)
        os.close(from_harness)
        ours, theirs = socket.socketpair()

        def copy(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
            while data := read(65536):
                write(data)

        client = HarnessClient(ours)
        out = asyncio.create_task(asyncio.to_thread(copy, theirs.recv, lambda data: os.write(from_client, data)))
        back = asyncio.create_task(asyncio.to_thread(copy, lambda size: os.read(to_client, size), theirs.sendall))
        await client.ready()
        assert (await client.call("blob", {"size": 300_000})).value == b"x" * 300_000
        await client.aclose()
        await out
        os.close(from_client)
        await back
        os.close(to_client)
        theirs.close()
        assert await asyncio.to_thread(process.wait, 60) == 0

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))


def test_a_harness_that_goes_takes_its_calls_along() -> None:
    async def test(started: Started) -> None:
        lost: list[HarnessLostError] = []
        started.client._on_lost = lost.append
        began = asyncio.Event()
        waiting = asyncio.create_task(
            started.client.call("wait_for", {"path": "/none"}, on_output=lambda *_: began.set())
        )
        async with asyncio.timeout(60):
            await began.wait()
        started.process.kill()
        with pytest.raises(HarnessLostError, match="the sandbox has ended"):
            await waiting
        assert (len(lost), started.client.is_lost) == (1, True)
        with pytest.raises(HarnessLostError):
            await started.client.call("echo", {"value": 1})

    _with_harness(test)
