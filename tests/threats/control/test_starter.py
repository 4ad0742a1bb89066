"""Attacks by way of the starter, from which the runs of one program are forked: what it has, and what one run leaves to
the next."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exeat.embed.finished import RunLostError
from exeat.embed.sandbox_manager import SandboxManager
from tests.support.fixtures.embedding import all_forked
from tests.support.gateways.scene import wait_until
from tests.support.runs.leak_scan import Needles, in_memory
from tests.support.runs.running import AS_ROOT, Process, children_of, descendants_of, python, wait_gone

# What a command finds of others: its open files, processes, and Unix sockets, abstract ones too.
LOOK = """
import os, sys
print(sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd") if int(n) > 2
             and os.path.exists(f"/proc/self/fd/{n}")))
print(sorted(open(f"/proc/{n}/comm").read().strip() for n in os.listdir("/proc") if n.isdigit() and n != "1"))
print(len(open("/proc/net/unix").readlines()) - 1)
"""


@pytest.fixture(autouse=True)
def _all_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    all_forked(monkeypatch)


def landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(444, 0, 0, 1))


def starter_of(others: set[int]) -> Process:
    (pid,) = set(children_of(os.getpid())) - others
    return Process(pid)


def sockets_of(pid: int) -> set[str]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(each.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""  # it has just ended


def how_often(pid: int, command: str) -> int:
    """In the descendants of this process."""
    return [command_of(each) for each in descendants_of(pid)].count(command)


@AS_ROOT
@pytest.mark.threat("T-P8")
def test_no_run_has_what_is_the_starters_or_another_runs() -> None:
    """Two at once, and a third that looks around. None of their processes, in the jail or out here, has a socket of
    the starter's: not the one to the program, and none on which another run's end is told."""
    others = set(children_of(os.getpid()))

    async def main() -> str:
        async with SandboxManager({"sandbox": {}}) as manager:
            starter = starter_of(others)
            stay = ["sleep", "70433"]
            tasks = [asyncio.create_task(manager.run(stay)) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: how_often(starter.pid, "sleep 70433") == 2, "both to run")
            held = sockets_of(starter.pid)
            assert len(held) == 3  # to the program, and one for each run
            seen = {pid: sockets_of(pid) for pid in descendants_of(starter.pid)}
            assert len(seen) >= 8
            assert not any(held & each for each in seen.values()), seen
            runners = [sockets_of(pid) for pid in children_of(starter.pid)]
            assert not runners[0] & runners[1]
            looked = (await manager.run(python(LOOK))).text
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return looked

    fds, processes, unix = asyncio.run(main()).splitlines()
    assert fds == "[]"
    assert processes.count("python") == 1
    assert "sleep" not in processes
    assert unix == "0"


@AS_ROOT
@pytest.mark.threat("T-P8")
def test_no_value_is_in_the_starter_or_in_a_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret of the environment goes to the run alone, and is wiped there once its gateway process has it. The
    control: that one has it. In the starter there is no trace, nor of what was run."""
    token, word = secrets.token_hex(12), f"word-{secrets.token_hex(12)}"
    value = f"sk-{secrets.token_hex(8)}{token}0001"
    needles = Needles(f"{token}0001"[-24:], {"key": value})
    words = Needles(word[-24:], {"word": word})
    file = tmp_path / "secrets.toml"
    file.write_text('[API_KEY]\nenv = "API_KEY"\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    monkeypatch.setenv("API_KEY", value)
    others = set(children_of(os.getpid()))

    async def main() -> None:
        async with SandboxManager({"sandbox": {"secrets": str(file)}}) as manager:
            starter = starter_of(others)
            task = asyncio.create_task(manager.run(["sh", "-c", f": {word}; sleep 70434"]))
            await asyncio.to_thread(wait_until, lambda: how_often(starter.pid, "sleep 70434") == 1, "the command")
            (runner,) = children_of(starter.pid)
            found = {pid: in_memory(pid, needles) for pid in (starter.pid, runner, *children_of(runner))}
            assert not found.pop(starter.pid)
            assert not in_memory(starter.pid, words)
            assert not found.pop(runner)
            assert sorted(map(len, found.values())) == [0, 1]  # init, and the gateway process
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.threat("T-P8")
def test_other_processes_of_the_user_do_not_get_into_the_starter() -> None:
    """Whoever changes its memory changes what all later runs are made of."""
    others = set(children_of(os.getpid()))
    with SandboxManager({"sandbox": {}}) as manager:
        starter = starter_of(others)
        assert manager.run_sync(["true"]).returncode == 0
        assert Path(f"/proc/{starter.pid}/environ").stat().st_uid == 0  # the kernel's way to say: not dumpable
        assert len(list(Path(f"/proc/{starter.pid}/task").iterdir())) == 1
        shown = Path(f"/proc/{starter.pid}/cmdline").read_text()
        assert "--starter=" in shown
        assert "true" not in shown


@pytest.mark.threat("T-P9")
def test_nothing_of_a_run_is_left_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, working directory, umask, signals and open files are those of each run's own moment, and what is
    random is so in each: all are forks of one process, which has run nothing."""
    file = tmp_path / "secrets.toml"
    file.write_text('[API_KEY]\nenv = "API_KEY"\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    monkeypatch.setenv("API_KEY", "sk-the-value-itself-0123456789")
    show = "echo $API_KEY; echo ${ONLY_FIRST-unset}; pwd; umask; sha256sum < $SSL_CERT_FILE; trap"
    show += "; grep Sig[BIC] /proc/self/status"
    with SandboxManager({"sandbox": {"secrets": str(file)}}) as manager:
        monkeypatch.setenv("ONLY_FIRST", "set")
        before = os.umask(0o077)
        try:
            first = manager.run_sync(["sh", "-c", f"{show}; cd /; umask 0; trap '' TERM"], cwd=tmp_path).text
        finally:
            os.umask(before)
        monkeypatch.delenv("ONLY_FIRST")
        monkeypatch.chdir("/var")
        second = manager.run_sync(["sh", "-c", show], cwd="/usr").text
    one, two = first.splitlines(), second.splitlines()
    assert (one[1], one[2], one[3]) == ("set", str(tmp_path), "0077")
    assert (two[1], two[2], two[3]) == ("unset", "/usr", f"{before:04o}")
    assert one[0] != two[0]  # the placeholder
    assert one[4] != two[4]  # the certificate, and so its key
    assert one[5:] == two[5:]
    assert "the-value" not in first + second


@pytest.mark.threat("T-P9")
def test_what_is_random_does_not_repeat(tmp_path: Path) -> None:
    """A fork has its parent's generators. None that is used in a run goes on from there: records of two runs have no
    id in common."""
    log = tmp_path / "audit.jsonl"
    with SandboxManager({"sandbox": {"audit_log": str(log)}}) as manager:
        for _ in range(2):
            manager.run_sync(["true"])
    runs = re.findall(r'"event":"start".*?"hash":"([0-9a-f]+)"', log.read_text())
    assert len(runs) == len(set(runs)) == 2
    done = subprocess.run([sys.executable, "-m", "exeat", "audit", "verify", str(log)], check=False, timeout=40)
    assert done.returncode == 0


@pytest.mark.threat("T-P10")
def test_a_starter_that_is_killed_takes_its_runs_with_it() -> None:
    """The command ends, and it is said that how it ended is not known. The next run has another starter."""
    others = set(children_of(os.getpid()))

    async def main() -> None:
        async with SandboxManager({"sandbox": {}}) as manager:
            starter = starter_of(others)
            task = asyncio.create_task(manager.run(["sleep", "70435"]))
            await asyncio.to_thread(wait_until, lambda: how_often(starter.pid, "sleep 70435") == 1, "the command")
            family = [Process(pid) for pid in descendants_of(starter.pid)]
            starter.kill()
            with pytest.raises(RunLostError, match="ended by signal 9"):
                await task
            await asyncio.to_thread(wait_gone, [starter, *family])
            await asyncio.to_thread(wait_until, lambda: not children_beside(others), "no child to be left")
            assert (await manager.run(["echo", "on"])).text == "on\n"
            assert starter_of(others).pid != starter.pid

    asyncio.run(main())


@pytest.mark.threat("T-P10")
def test_a_run_ends_though_the_starter_was_stopped() -> None:
    """It is the starter that tells how a run has ended. If it does not, the run's own report says so."""
    others = set(children_of(os.getpid()))

    async def main() -> int:
        async with SandboxManager({"sandbox": {}}) as manager:
            starter = starter_of(others)
            task = asyncio.create_task(manager.run(["sh", "-c", "sleep 1.0437; exit 7"]))
            await asyncio.to_thread(wait_until, lambda: how_often(starter.pid, "sleep 1.0437") == 1, "the command")
            starter.kill(signal.SIGSTOP)
            try:
                return (await asyncio.wait_for(task, 40)).returncode
            finally:
                starter.kill(signal.SIGCONT)

    assert asyncio.run(main()) == 7


@pytest.mark.threat("T-P9")
def test_what_changes_for_later_runs_does_not_end_those_that_go_on() -> None:
    """Limits, processors and the like may differ between the threads of a program: another starter takes over, and the
    one before stays until its runs have ended."""
    others = set(children_of(os.getpid()))
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)

    async def main() -> tuple[str, str]:
        async with SandboxManager({"sandbox": {}}) as manager:
            first = starter_of(others)
            task = asyncio.create_task(manager.run(["sh", "-c", "sleep 70437; echo on"]))
            await asyncio.to_thread(wait_until, lambda: how_often(first.pid, "sleep 70437") == 1, "the command")
            resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 1, hard))
            second = (await manager.run(["sh", "-c", "ulimit -c"])).text
            (sleeper,) = (each for each in descendants_of(first.pid) if command_of(each) == "sleep 70437")
            os.kill(sleeper, signal.SIGTERM)
            text = (await task).text
            await asyncio.to_thread(wait_gone, [first])
        return text, second

    try:
        text, core = asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert text == "on\n"
    assert core != "unlimited\n"


CONFINED = """
import asyncio, ctypes, os, struct
from exeat.embed.sandbox_manager import SandboxManager
from exeat.embed.surroundings import surroundings
libc = ctypes.CDLL(None, use_errno=True)
async def main():
    async with SandboxManager({"sandbox": {}}) as manager:
        forked = await manager._starter.fork()
        assert forked is not None
        forked.close()
        # A rule set that handles TCP, both bind and connect, and allows none.
        rules = libc.syscall(444, struct.pack("QQQ", 0, 3, 0), 16, 0)
        assert rules >= 0 and libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.syscall(446, rules, 0) == 0
        manager._starter._made_in = surroundings()
        print(await manager._starter.fork())
        await manager._starter.ready()
        forked = await manager._starter.fork()
        print(forked is not None)
        forked.close()
asyncio.run(main())
"""


@pytest.mark.threat("T-P9")
@pytest.mark.skipif(landlock_version() < 4, reason="needs Landlock for TCP, Linux 6.7")
def test_no_run_is_forked_outside_of_what_the_program_has_confined_itself_to() -> None:
    """With Landlock, of which /proc shows nothing. (That it gives up new privileges for it would be seen; it may have
    done so long before.) The next starter is in the same confinement, and can be used."""
    done = subprocess.run([sys.executable, "-c", CONFINED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("None\nTrue\n", "")


def children_beside(others: set[int]) -> set[int]:
    return set(children_of(os.getpid())) - others


PROGRAM = """
import os, sys, threading, time
from exeat.embed.sandbox_manager import SandboxManager
manager = SandboxManager({"sandbox": {}})
# The thread that starts the starter ends, and what it has started goes on.
def first():
    manager.__enter__()
thread = threading.Thread(target=first)
thread.start()
thread.join()
if os.fork() == 0:  # has a copy of all that the program has open
    time.sleep(30)
    os._exit(0)
print("started", flush=True)
manager.run_sync(["sleep", "70436"])
"""


@pytest.mark.threat("T-P10")
def test_a_program_that_is_killed_takes_all_with_it() -> None:
    """Though a thread of it has ended, and a fork of it has its end of every socket."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"started\n"
            wait_until(lambda: how_often(program.pid, "sleep 70436") == 1, "the command")
            family = [Process(pid) for pid in descendants_of(program.pid) if not is_fork(pid)]
            (fork,) = (Process(pid) for pid in children_of(program.pid) if is_fork(pid))
            assert len(family) >= 5
        finally:
            program.send_signal(signal.SIGKILL)
        wait_gone(family)
        fork.kill()


def is_fork(pid: int) -> bool:
    return "os.fork()" in command_of(pid)
