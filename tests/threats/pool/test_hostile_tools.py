"""Tools that attack the harness they run in, or the other calls of their sandbox: it costs them their own call.

Each test ends with the control: a call before, next to or after the attack gets its answer from the same harness.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from exeat.container.harness.outcome import (
    CallResult,
    HarnessLostError,
    Limit,
    ToolError,
    ToolLimitError,
    ToolTimeoutError,
)
from tests.support.harnesses import OWN_USER, Started, start_harness

_TOOLS = r"""
import ctypes, json, os, resource, signal, socket, struct, subprocess, sys, time

def echo(value):
    return value

def wait_for(path: str):
    print(os.getpid(), os.getppid(), flush=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"

def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name).split(":")[0]
        except OSError:
            pass  # the one that listed them
    return found

def descriptors_of_a_program(numbers: list[int]):
    return [
        subprocess.run(["test", "-e", f"/proc/self/fd/{number}"], close_fds=False).returncode == 0
        for number in numbers
    ]

def frame(head, blob=b""):
    text = json.dumps(head).encode()
    return struct.pack(">II", 4 + len(text) + len(blob), len(text)) + text + blob

def write_garbage(numbers: list[int], forged: int):
    data = frame({"id": forged, "result": {"kind": "J"}}, b'"forged"') + b"\xff" * 5000 + b"{}\n" * 100
    written = 0
    for number in numbers:
        try:
            written += os.write(number, data)
        except OSError:
            pass
    return written

def say(outcome: str):
    os.write(3, outcome.encode())
    os._exit(0)

def say_deep(depth: int):
    say("J" + "[" * depth + "]" * depth)

def close_all():
    os.closerange(0, 1024)

def replace_all():
    for number in range(20):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    os.closerange(20, 1024)

def look_into(pids: list[int]):
    libc = ctypes.CDLL(None, use_errno=True)
    control = subprocess.Popen(["sleep", "1000"])
    while not os.access(f"/proc/{control.pid}/environ", os.R_OK):
        time.sleep(0.01)  # it may be looked into from a moment on that is a little later than exec
    found = {}
    for pid in [control.pid, *pids]:
        ways = found[str(pid)] = []
        for name in ("fd", "mem", "environ", "maps", "cwd", "exe"):
            path = f"/proc/{pid}/{name}"
            try:
                if name == "fd":
                    [os.readlink(f"{path}/{each}") for each in os.listdir(path)]
                elif name in ("cwd", "exe"):
                    os.readlink(path)
                else:
                    open(path, "rb+" if name == "mem" else "rb").close()
                ways.append(name)
            except OSError:
                pass
        if libc.ptrace(16, pid, None, None) == 0:  # PTRACE_ATTACH
            ways.append("ptrace")
            os.waitpid(pid, 0)
        try:
            pidfd = os.pidfd_open(pid)
            if libc.syscall(438, pidfd, 0, 0) >= 0:  # pidfd_getfd
                ways.append("pidfd")
        except OSError:
            pass
    control.kill()
    return {"control": found.pop(str(control.pid)), **found}

def daemons(depth: int, count: int):
    pids = []
    for number in range(count):
        reading, writing = os.pipe()
        if os.fork() == 0:
            for _ in range(depth):
                os.setsid()
                if os.fork():
                    os._exit(0)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
            os.write(writing, str(os.getpid()).encode())
            while True:
                time.sleep(1000)
        pids.append(int(os.read(reading, 20)))
    shell = subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 1000 & sleep 1000"], start_new_session=True)
    return [*pids, shell.pid]

def comets(stop: str, count: int):
    for _ in range(count):
        if os.fork() == 0:
            while not os.path.exists(stop):
                os.setsid()
                if os.fork():
                    os._exit(0)
            os._exit(0)

def bomb(most: int):
    for _ in range(most):
        if os.fork() == 0:
            while True:
                time.sleep(1000)
    while True:
        time.sleep(1000)

def hang():
    for number in range(1, 64):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.close(1)
    while True:
        pass

def come_back_twice():
    if os.fork() == 0:
        return "child"
    return "parent"

def signal_all(targets: list[int], number: int):
    errors = []
    for target in targets:
        try:
            os.kill(target, number)
            errors.append("")
        except OSError as error:
            errors.append(error.strerror)
    return errors

def signal_by_descriptor(target: int):
    # The kernel sends SIGKILL for us when there is something to read.
    import fcntl
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETOWN, target)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    theirs.send(b"x")

def write_file(size: int):
    with open("large", "wb") as file:
        file.write(b"x" * size)

def children_eat(size: int, count: int):
    for _ in range(count):
        if os.fork() == 0:
            try:
                data = bytearray(size)
                os._exit(0)
            except MemoryError:
                os._exit(1)
    return [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(count)]
"""
_PROC = Path("/proc")
_OLD_KERNEL = MappingProxyType({"self.scoped = has_scopes()": "self.scoped = False"})


def _attack(test: Callable[[Started], Awaitable[None]], changed: Mapping[str, str] = MappingProxyType({})) -> None:
    async def main() -> None:
        async with start_harness(_TOOLS, changed=changed) as started:
            assert (await started.client.call("echo", {"value": "before"})).value == "before"
            await test(started)

    asyncio.run(main())


@dataclass(frozen=True, slots=True)
class Other:
    """A call of the same sandbox that runs while another one attacks."""

    task: asyncio.Task[CallResult]
    go: Path
    pids: list[int]  # worker, supervisor

    async def finish(self) -> object:
        self.go.touch()
        return (await self.task).value


async def _start_other(started: Started) -> Other:
    go = started.scratch / "go"
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = started.client.call("wait_for", {"path": str(go)}, on_output=lambda _, text: said.set_result(text))
    task = asyncio.create_task(call)
    async with asyncio.timeout(60):
        pids = [int(pid) for pid in (await said).split()]
    return Other(task, go, pids)


async def _goes_on(started: Started) -> None:
    assert (await started.client.call("echo", {"value": "after"})).value == "after"


async def _fails(started: Started, tool: str, arguments: dict[str, Any], **limits: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await started.client.call(tool, arguments, **limits)
    return caught.value


@pytest.mark.threat("T-N3")
def test_the_protocol_is_not_among_a_tools_descriptors() -> None:
    async def test(started: Started) -> None:
        found = (await started.client.call("descriptors", {})).value
        assert found == {"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "pipe"}
        numbers = [*range(10)]
        found = (await started.client.call("descriptors_of_a_program", {"numbers": numbers})).value
        assert found == [number < 3 for number in numbers]

    _attack(test)


@pytest.mark.threat("T-N3")
def test_garbage_in_every_descriptor() -> None:
    """With an answer for another call in it, which runs at the same time: that one gets its own."""

    async def test(started: Started) -> None:
        other = await _start_other(started)
        forged = started.client._number
        error = await _fails(started, "write_garbage", {"numbers": [*range(1024)], "forged": forged})
        assert error.type == "BadAnswer"
        assert "forged" in error.stdout
        assert "forged" in error.stderr
        # Without the pipe of its outcome it is only output, and the control: it was written.
        result = await started.client.call("write_garbage", {"numbers": [1, 2], "forged": forged})
        assert result.value > 10_000
        assert await other.finish() == "seen"

    _attack(test)


@pytest.mark.threat("T-N3")
@pytest.mark.parametrize(
    "outcome",
    [
        "J{",
        "JNaN",
        "J1e999",
        "J" + "9" * 5000,
        'J"\\ud800"',
        "Jnull null",
        "E{}",
        'E["type"]',
        "E{{{",
        "Z",
        "\0" * 9,
        "J\x80",
    ],
)
def test_answers_that_are_none(outcome: str) -> None:
    async def test(started: Started) -> None:
        assert (await _fails(started, "say", {"outcome": outcome})).type == "BadAnswer"
        await _goes_on(started)
        assert (await started.client.call("say", {"outcome": "J[1]"})).value == [1]  # the control

    _attack(test)


@pytest.mark.threat("T-N3")
def test_answers_that_are_deep() -> None:
    async def test(started: Started) -> None:
        for depth in (65, 100_000):
            assert (await _fails(started, "say_deep", {"depth": depth})).type == "BadAnswer"
        await started.client.call("say_deep", {"depth": 60})

    _attack(test)


@pytest.mark.threat("T-N3")
def test_descriptors_closed_or_replaced() -> None:
    async def test(started: Started) -> None:
        for tool in ("close_all", "replace_all"):
            assert (await _fails(started, tool, {})).type == "NoAnswer"
        await _goes_on(started)

    _attack(test)


@pytest.mark.threat("T-N3")
def test_a_fork_that_comes_back_has_no_say() -> None:
    async def test(started: Started) -> None:
        assert (await started.client.call("come_back_twice", {})).value == "parent"

    _attack(test)


@pytest.mark.threat("T-N10")
def test_no_process_outlives_its_call() -> None:
    """Daemons, sessions of their own, signals blocked: when the answer comes they are gone."""

    async def test(started: Started) -> None:
        for depth in (0, 1, 3):
            pids = (await started.client.call("daemons", {"depth": depth, "count": 4})).value
            assert len(pids) == 5
            assert _alive(pids) == []
        await _goes_on(started)

    _attack(test)


@pytest.mark.threat("T-N10")
def test_processes_that_fork_and_exit_all_the_time() -> None:
    """Each is in a session of its own, so that none can be found again."""

    async def test(started: Started) -> None:
        stop = started.scratch / "stop"
        try:
            await started.client.call("comets", {"stop": str(stop), "count": 5})
            await _only_the_harness_is_left()
            await _goes_on(started)
        finally:
            stop.touch()

    _attack(test)


@pytest.mark.threat("T-N10")
def test_a_call_that_hangs_or_multiplies_is_ended() -> None:
    async def test(started: Started) -> None:
        for tool, arguments in (("hang", {}), ("bomb", {"most": 50})):
            with pytest.raises(ToolTimeoutError):
                await started.client.call(tool, arguments, timeout_s=2)
            await _only_the_harness_is_left()
        await _goes_on(started)

    _attack(test)


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (_PROC / str(pid)).exists()]


async def _only_the_harness_is_left() -> None:
    """And the pair that waits for a call. A supervisor may take a moment to leave when it has answered."""
    async with asyncio.timeout(60):
        while len(await asyncio.to_thread(_processes)) > 3:  # noqa: ASYNC110  # nothing says when
            await asyncio.sleep(0.01)


def _processes() -> list[str]:
    """Of the harness's user. If it has none of its own they cannot be told from others."""
    found = []
    for path in _PROC.glob("[0-9]*") if OWN_USER is not None else ():
        try:
            if f"\nUid:\t{OWN_USER}\t" in (path / "status").read_text():
                found.append(path.name)
        except OSError:
            continue
    return found


@pytest.mark.threat("T-N11")
@pytest.mark.parametrize("changed", [MappingProxyType({}), _OLD_KERNEL], ids=["scoped", "not scoped"])
def test_memory_and_descriptors_of_the_harness(changed: Mapping[str, str]) -> None:
    """By /proc, ptrace and pidfd: of the harness, the supervisor, another call. A program of its own is the control."""

    async def test(started: Started) -> None:
        other = await _start_other(started)
        victims = [started.process.pid, *other.pids]
        found = (await started.client.call("look_into", {"pids": victims})).value
        assert {"fd", "mem", "environ", "maps", "cwd", "exe"} <= {*found.pop("control")}  # a machine may refuse ptrace
        assert {pid: ways for pid, ways in found.items() if ways} == {}
        assert await other.finish() == "seen"

    _attack(test, changed)


@pytest.mark.threat("T-N11")
def test_signals_stay_inside_a_call() -> None:
    """Where the kernel can keep them there (Linux 6.12)."""

    async def test(started: Started) -> None:
        if not (await started.client.ready()).scoped:
            pytest.skip("needs Linux 6.12 with Landlock")
        other = await _start_other(started)
        victims = [started.process.pid, *other.pids]
        for number in (signal.SIGKILL, signal.SIGSTOP):
            refused = (await started.client.call("signal_all", {"targets": victims, "number": number})).value
            assert set(refused) == {"Operation not permitted"}
        for victim in victims:
            await started.client.call("signal_by_descriptor", {"target": victim})
        if OWN_USER is not None:
            await started.client.call("signal_all", {"targets": [-1], "number": signal.SIGKILL})
        assert await other.finish() == "seen"

    _attack(test)


@pytest.mark.threat("T-N11")
@pytest.mark.skipif(OWN_USER is None, reason="needs root, for a user that is no one else's")
def test_a_sandbox_that_lost_its_harness_says_so_at_once() -> None:
    """On older kernels a tool can end its own sandbox. What waits there learns it, and nothing hangs."""

    async def test(started: Started) -> None:
        other = asyncio.create_task(started.client.call("wait_for", {"path": "/none"}))
        with pytest.raises(HarnessLostError):
            await started.client.call("signal_all", {"targets": [-1], "number": signal.SIGKILL})
        with pytest.raises(HarnessLostError):
            await other

    _attack(test, _OLD_KERNEL)


@pytest.mark.threat("T-N11")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_call_without_its_supervisor_ends_the_sandbox(number: int) -> None:
    """What it started could not be ended any more, so everything is: the harness leaves, and with it the container."""
    changed = dict(_OLD_KERNEL) | {"ENDING_S = 5.0": "ENDING_S = 0.5"}

    async def test(started: Started) -> None:
        other = await _start_other(started)
        waiting = asyncio.create_task(started.client.call("wait_for", {"path": "/none"}))
        supervisor = other.pids[1]
        try:
            await started.client.call("signal_all", {"targets": [supervisor], "number": number})
        except HarnessLostError:
            pass  # before it could answer
        if number == signal.SIGSTOP:
            other.task.cancel()  # it obeys no more, which is noticed when it has to
        with pytest.raises(HarnessLostError):
            await waiting
        with pytest.raises((HarnessLostError, asyncio.CancelledError)):
            await other.task
        if number == signal.SIGSTOP:
            os.kill(supervisor, signal.SIGCONT)  # outside of a container it is for the test to end it

    _attack(test, changed)


@pytest.mark.threat("T-N12")
def test_what_a_call_may_use() -> None:
    """Memory in children of its own, one large file. The controls: half of each."""

    async def test(started: Started) -> None:
        call = started.client.call
        limits: dict[str, Any] = {"memory_bytes": 100 << 20, "file_bytes": 1 << 20}
        assert (await call("children_eat", {"size": 200 << 20, "count": 3}, **limits)).value == [1, 1, 1]
        assert (await call("children_eat", {"size": 50 << 20, "count": 3}, **limits)).value == [0, 0, 0]
        error = await _fails(started, "write_file", {"size": 2 << 20}, **limits)
        assert (error.type, error.message) == ("OSError", "[Errno 27] File too large")
        await call("write_file", {"size": 1 << 19}, **limits)
        with pytest.raises(ToolLimitError) as caught:
            await call("write_garbage", {"numbers": [1] * 1000, "forged": 1}, output_bytes=100_000)
        assert caught.value.limit is Limit.OUTPUT
        await _goes_on(started)

    _attack(test)
