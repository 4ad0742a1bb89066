"""The starter of a `SandboxManager`: when there is one, what it makes of the program's surroundings, and what it does
when it cannot be used. That runs are the same with it and without is shown in test_run_embed.py."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from exeat.embed.forked import ForkedProcess
from exeat.embed.running import Child, Streams
from exeat.embed.sandbox_manager import SandboxManager
from exeat.embed.starter import Starter
from tests.support.fixtures.embedding import all_forked
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import Process, children_of, descendants_of, state_of, wait_gone


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each run that could have been forked: was it?"""
    found: list[bool] = []
    fork = Starter.fork

    async def noting(self: Starter) -> ForkedProcess | None:
        process = await fork(self)
        found.append(process is not None)
        return process

    monkeypatch.setattr(Starter, "fork", noting)
    return found


@pytest.fixture
def others() -> set[int]:
    return set(children_of(os.getpid()))


def starter_of(others: set[int]) -> Process:
    (pid,) = set(children_of(os.getpid())) - others
    return Process(pid)


def test_a_program_that_runs_one_command_has_no_starter(forked: list[bool], others: set[int]) -> None:
    """It would cost more than it saves. From the second run on there is one, and it goes when the manager is closed."""
    manager = SandboxManager({"sandbox": {}})
    assert manager.run_sync(["true"]).returncode == 0
    assert not set(children_of(os.getpid())) - others
    assert manager.run_sync(["true"]).returncode == 0
    starter = starter_of(others)
    asyncio.run(manager._starter.ready())  # type: ignore[union-attr]
    assert manager.run_sync(["true"]).returncode == 0
    assert forked[-1]
    manager.close()
    wait_gone([starter])
    wait_until(lambda: not set(children_of(os.getpid())) - others, "it to be waited for")


def test_a_manager_that_is_dropped_leaves_no_starter(others: set[int]) -> None:
    manager = SandboxManager({"sandbox": {}})
    manager.__enter__()
    starter = starter_of(others)
    del manager
    wait_gone([starter])


@pytest.mark.parametrize("sandbox", [{"enabled": False}, {"jail": "env"}])
def test_where_nothing_ends_a_command_with_its_runner_there_is_no_starter(
    sandbox: dict[str, object], forked: list[bool], others: set[int]
) -> None:
    with SandboxManager({"sandbox": sandbox}) as manager:
        assert manager.run_sync(["echo", "hi"]).text == "hi\n"
        assert not set(children_of(os.getpid())) - others
    assert not forked


def test_many_at_once(forked: list[bool]) -> None:
    """Each has its own command, input, output and status."""

    async def main() -> list[tuple[int, str]]:
        async with SandboxManager({"sandbox": {}}) as manager:
            runs = [manager.run(["sh", "-c", f"cat; exit {n}"], input=f"{n}") for n in range(50)]
            return [(done.returncode, done.text) for done in await asyncio.gather(*runs)]

    assert asyncio.run(main()) == [(n, str(n)) for n in range(50)]
    assert sum(forked) > 1


def test_many_threads(forked: list[bool]) -> None:
    with SandboxManager({"sandbox": {}}) as manager, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: manager.run_sync(["echo", str(n)]).text, range(16)))
    assert done == [f"{n}\n" for n in range(16)]
    assert all(forked)


@pytest.fixture
def open_file_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_command_has_what_the_program_has_now(
    open_file_limit: int, others: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process inherits without being told may have changed since the starter was started. Then there is
    another."""
    all_forked(monkeypatch)
    with SandboxManager({"sandbox": {}}) as manager:
        assert manager.run_sync(["sh", "-c", "ulimit -n"]).text == f"{open_file_limit}\n"
        first = starter_of(others)
        lower = open_file_limit // 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        assert manager.run_sync(["sh", "-c", "ulimit -n"]).text == f"{lower}\n"
        wait_gone([first])
        second = starter_of(others)
        assert manager.run_sync(["true"]).returncode == 0
        assert second.is_there


MANAGED = """
from exeat.embed.sandbox_manager import SandboxManager
with SandboxManager({"sandbox": {}}) as manager:
    manager.run_sync(["true"])
    raise SystemExit(manager.run_sync(["sh", "-c", "exit 3"]).returncode)
"""


def test_a_command_is_scheduled_as_the_program_is_now(others: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    all_forked(monkeypatch)
    show = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
    before = os.sched_getscheduler(0)
    with SandboxManager({"sandbox": {}}) as manager:
        assert manager.run_sync(show).text == f"{before}\n"
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try:
            assert manager.run_sync(show).text == f"{os.SCHED_BATCH}\n"
        finally:
            os.sched_setscheduler(0, before, os.sched_param(0))


@pytest.mark.parametrize("way", [["-m", "exeat", "run", "--", "sh", "-c", "exit 3"], ["-c", MANAGED]])
def test_who_starts_it_may_have_no_interest_in_its_children(way: list[str]) -> None:
    """SIGCHLD that is ignored stays so in what is started, and the kernel then keeps no status of any child."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    argv = [sys.executable, "-c", ignoring, sys.executable, *way]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done


def test_a_run_for_which_no_file_is_left_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with SandboxManager({"sandbox": {}}) as manager:
            assert manager._starter is not None
            forked = await manager._starter.fork()
            assert forked is not None
            before = len(descriptors_of(os.getpid()))
            child = Child()
            monkeypatch.setattr(os, "open", refuse)
            with pytest.raises(OSError, match="Too many"):
                await child.start(["run", "--", "true"], Streams(), forked)
            monkeypatch.undo()
            await child.end()
            child.close()
            # Its descriptor, the socket on which it waits, and that on which its end is told.
            assert len(descriptors_of(os.getpid())) == before - 3

    asyncio.run(main())


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_starter_that_does_not_answer_is_done_without(forked: list[bool], others: set[int]) -> None:
    with SandboxManager({"sandbox": {}}) as manager:
        starter = starter_of(others)
        starter.kill(signal.SIGSTOP)
        assert manager.run_sync(["echo", "hi"]).text == "hi\n"
        starter.kill(signal.SIGCONT)
        assert manager.run_sync(["echo", "hi"]).text == "hi\n"
    assert forked == [True, False, True]  # the first is the look at the jail


def descriptors_of(pid: int) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}


def sleepers(pid: int) -> list[int]:
    """Of its descendants."""
    found = []
    for each in descendants_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if Path(f"/proc/{each}/comm").read_text() == "sleep\n":
                found.append(each)
    return found


@pytest.mark.threat("T-P10")
def test_a_starter_without_room_for_more_files_goes_on(forked: list[bool], others: set[int]) -> None:
    """The next run is started without it. The one that it has forked is not touched by that."""

    async def main() -> list[str]:
        async with SandboxManager({"sandbox": {}}) as manager:
            starter = starter_of(others)
            task = asyncio.create_task(manager.run(["sh", "-c", "sleep 70438; echo on"]))
            await asyncio.to_thread(wait_until, lambda: len(sleepers(starter.pid)) == 1, "the command")
            texts = []
            taken = descriptors_of(starter.pid)
            _, hard = resource.prlimit(starter.pid, resource.RLIMIT_NOFILE)
            for room in range(3):  # it takes three
                limit = [number for number in range(max(taken) + 5) if number not in taken][room]
                resource.prlimit(starter.pid, resource.RLIMIT_NOFILE, (limit, hard))
                texts.append((await manager.run(["echo", str(room)])).text)
            (sleeper,) = sleepers(starter.pid)
            os.kill(sleeper, signal.SIGTERM)
            texts.append((await task).text)
            assert starter.is_there
        return texts

    assert asyncio.run(main()) == ["0\n", "1\n", "2\n", "on\n"]
    assert forked == [True, True, False, False, False]  # the first is the look at the jail


@pytest.mark.threat("T-P10")
def test_a_run_that_is_cancelled_while_it_is_forked_never_begins(tmp_path: Path, others: set[int]) -> None:
    """What was asked for is forked when the starter goes on, and ends by itself."""
    made = tmp_path / "made"

    async def main() -> None:
        async with SandboxManager({"sandbox": {}}) as manager:
            starter = starter_of(others)
            starter.kill(signal.SIGSTOP)
            wait_until(lambda: state_of(starter.pid) == "T", "it to stop")
            task = asyncio.create_task(manager.run(["touch", str(made)], cwd=tmp_path))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            starter.kill(signal.SIGCONT)
            assert (await manager.run(["echo", "on"])).text == "on\n"
            await asyncio.to_thread(wait_until, lambda: not descendants_of(starter.pid), "all forks to end")

    asyncio.run(main())
    assert not made.exists()


def test_one_that_cannot_start_is_not_tried_again(
    forked: list[bool], others: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from exeat.embed import starter as module

    tried: list[object] = []
    start = module._start

    def start_wrongly(uses: object) -> object:
        tried.append(uses)
        return start(["nonsense"])

    monkeypatch.setattr(module, "_start", start_wrongly)
    with SandboxManager({"sandbox": {}}) as manager:
        assert manager.run_sync(["echo", "hi"]).text == "hi\n"
    assert (forked, len(tried)) == ([False, False], 1)


# Prints what the runner and its gateway process have loaded when the command starts, and the starter had not.
LATE = """
import json, os, sys
from exeat.cli import embedded
from exeat.cli.program import starter
import exeat.run.sealing as sealing
starter.load(sys.argv[1].split())
known = set(sys.modules)
seal = sealing.seal_imports
def tell(needed_later=()):
    seal(needed_later)
    os.write(2, json.dumps(sorted(set(sys.modules) - known)).encode() + b"\\n")
import exeat.run.gateway_process.serving, exeat.run.lifecycle
sealing.seal_imports = exeat.run.lifecycle.seal_imports = exeat.run.gateway_process.serving.seal_imports = tell
sys.stderr = embedded.open_report(os.dup(1))
embedded.report(lambda summaries: embedded._act(sys.argv[2:], None, summaries))
"""


@pytest.mark.parametrize("use", ["", "secrets", "name"])
def test_a_starter_has_loaded_all(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not, each run loads by itself: it costs time, and files of exeat may have changed by then."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("API_KEY", "sk-the-value-itself-0123456789")
    file = tmp_path / "secrets.json"
    file.write_text('{"API_KEY": {"env": "API_KEY", "hosts": ["api.test"]}}')
    file.chmod(0o600)
    options = {"": [], "secrets": [f"--secrets={file}"], "name": ["--name=work", "--new"]}[use]
    argv = [sys.executable, "-I", "-c", LATE, use, "run", "--jail=netns", "--allow=good.test", *options, "--", "true"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    late = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(late) == 2, done
    assert late == [[], []]
