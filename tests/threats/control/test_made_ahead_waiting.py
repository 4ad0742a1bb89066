"""Jails that wait for long, hang, or are forked with their program: what that costs the runs of the program."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exeat.embed.finished import RunTimeoutError
from exeat.embed.sandbox_manager import SandboxManager
from exeat.embed.stock import PreparedProcess
from exeat.errors import ConfigError
from tests.support.gateways.scene import wait_until
from tests.support.runs.made_ahead import ahead, run_all, standing
from tests.support.runs.running import Process, children_of


@pytest.mark.threat("T-P14")
def test_one_that_has_waited_for_long_is_not_used(
    place: Path, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificates end, for one. So does a clock that was set back count."""

    async def work(manager: SandboxManager) -> None:
        for later, is_used in ((0.0, True), (25 * 3600.0, False), (-3600.0, False)):
            await standing(manager)
            now = time.time()
            with monkeypatch.context() as patch:
                patch.setattr("exeat.embed.stock.time.time", lambda at=now + later: at)
                await manager.run(["true"])
            assert used.pop() == is_used

    run_all(work)


@pytest.mark.threat("T-P14")
def test_no_more_are_made_than_are_wanted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends while someone waits until those that were asked for stand: the one that is looked at counts too."""

    async def work(manager: SandboxManager) -> None:
        stock = manager._stock
        assert stock is not None
        await standing(manager)
        go_on = asyncio.Event()

        async def stand(_: object) -> None:
            await go_on.wait()

        monkeypatch.setattr("exeat.embed.stock._Waiting.stand", stand)
        waiting = asyncio.create_task(stock.stand())
        await asyncio.sleep(0)
        stock.fill(manager.environ())
        assert len(stock._waiting) == 1
        go_on.set()
        await waiting
        assert len(stock._waiting) == 2

    run_all(work, prepared=2)


@pytest.mark.threat("T-P14")
@pytest.mark.parametrize("does", [lambda manager: None, SandboxManager.close], ids=["ends", "closes"])
def test_a_fork_of_the_program_ends_nothing_that_waits(
    does: Callable[[SandboxManager], None], place: Path, used: list[bool]
) -> None:
    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio._set_running_loop(None)
                does(manager)
                manager.__dict__.clear()  # as at its end
            finally:
                os._exit(0)
        await asyncio.to_thread(os.waitpid, pid, 0)
        assert (await manager.run(["echo", "on"])).text == "on\n"

    run_all(work)
    assert used == [True]


def _stop(manager: SandboxManager) -> list[Process]:
    assert manager._stock is not None
    stopped = []
    for each in manager._stock._waiting:
        assert isinstance(each.process, PreparedProcess)
        stopped.append(Process(each.process._pid))
        os.kill(each.process._pid, signal.SIGSTOP)
    return stopped


@pytest.mark.threat("T-P14")
def test_the_time_of_a_run_begins_before_its_jail_is_taken(place: Path) -> None:
    """Someone has stopped all that wait. The control: the limit of one of them is far from over."""

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        _stop(manager)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RunTimeoutError, match=r"0\.3"):
            await manager.run(["true"], timeout_s=0.3)
        assert loop.time() - began < 4

    run_all(work, prepared=3)


@pytest.mark.threat("T-P14")
def test_all_that_hang_cost_one_run_the_time_of_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exeat.embed.stock._TAKE_S", 0.5)
    asked: list[PreparedProcess] = []
    take = PreparedProcess.take

    async def noting(self: PreparedProcess, *arguments: Any) -> bool:
        asked.append(self)
        return await take(self, *arguments)

    monkeypatch.setattr(PreparedProcess, "take", noting)

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        _stop(manager)
        assert (await manager.run(["echo", "on"])).text == "on\n"
        assert len(asked) == 1
        await standing(manager)
        assert (await manager.run(["echo", "on"])).text == "on\n"

    run_all(work, prepared=4)


@pytest.mark.threat("T-P14")
def test_one_that_hangs_does_not_stop_a_program_without_descriptors(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop goes on, though it can wait for nothing."""

    def no_more(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        stopped = _stop(manager)
        rescue = asyncio.get_running_loop().run_in_executor(None, _let_go_later, stopped)
        with monkeypatch.context() as patch:
            patch.setattr("os.dup", no_more)
            done = await manager.run(["echo", "on"])
        assert done.text == "on\n"
        assert all(each.is_there for each in stopped)  # it was not waited for
        await rescue

    run_all(work)


def _let_go_later(stopped: list[Process]) -> None:
    """Else a program that waits for it would do so for ever."""
    time.sleep(4)
    for each in stopped:
        each.kill(signal.SIGKILL)


def test_no_log_stays_that_no_run_has_needed(place: Path) -> None:
    """Each made the files if they were not there, and the last that leaves has made none."""

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        await asyncio.gather(*(manager.run(["true"]) for _ in range(4)))
        await standing(manager)

    run_all(work, prepared=2, audit_log="audit.jsonl")
    wait_until(lambda: [each.name for each in place.iterdir()] == ["audit.jsonl"], "all have left")


@pytest.mark.threat("T-P14")
def test_all_that_hang_at_the_start_cost_it_the_time_of_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    async def work(manager: SandboxManager) -> None:
        assert manager._stock is not None
        manager._stock._drop()
        starter = max(pid for pid in children_of(os.getpid()) if "--starter" in _words(pid))  # others may be leaving
        os.kill(starter, signal.SIGSTOP)
        wait_until(lambda: _state(starter) == "T", "the starter to stop")
        with monkeypatch.context() as patch:
            patch.setattr("exeat.embed.stock._STAND_S", 0.5)
            manager._stock.fill(manager.environ())
            await manager._stock.stand()
        assert len(manager._stock._waiting) == 3  # the first was not there in time
        os.kill(starter, signal.SIGCONT)
        await manager._stock.stand()
        assert any(each.stands for each in manager._stock._waiting)

    run_all(work, prepared=4)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_a_folder_that_is_gone_is_told_as_without_jails_made_ahead(place: Path) -> None:
    folder = place / "gone"
    folder.mkdir()
    os.chdir(folder)

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        folder.rmdir()
        with pytest.raises(ConfigError, match="no longer exists"):
            await manager.run(["true"])

    run_all(work)


def test_the_host_s_own_files_can_be_had_ahead(place: Path) -> None:
    """Whether they are used depends on all that goes on there."""

    async def work(manager: SandboxManager) -> None:
        assert manager._stock is not None
        await standing(manager)
        assert all(each.stands for each in manager._stock._waiting)
        assert (await manager.run(["pwd"])).text == f"{place}\n"

    run_all(work, filesystem={"mode": "host"})


# By the kernel's own call: the C library keeps these signals to itself.
_IGNORE = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 13, "aarch64": 134}[platform.machine()]
action = ctypes.create_string_buffer(struct.pack("@QQQQ", 1, 0, 0, 0))
for each in (32, 33):
    assert ctypes.CDLL(None).syscall(number, each, action, None, 8) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_program_s_first_thread_changes_nothing(place: Path) -> None:
    """With it the C library takes two signals for itself, which whoever started the program has ignored."""
    with ahead({}, place, before=[sys.executable, "-c", f"import os; os.chdir({str(place)!r})\n{_IGNORE}"]) as program:
        assert program.stands()
        ignored = next(line for line in _status(program.pid) if line.startswith("SigIgn:"))
        assert int(ignored.split()[1], 16) & 1 << 31  # the control
        assert program.run("echo", "on") == (True, "on\n", "")


def _status(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()
