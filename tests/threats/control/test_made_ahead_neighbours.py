"""Attacks on jails that wait, by others who work in the same folders, on the same machine or in the same program."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
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
from tests.support.runs.made_ahead import ahead, run_all, secret_file, standing
from tests.support.runs.running import AS_ROOT, BY_USER, Process, children_of, descendants_of, python

_NAME_AGAIN = "for each in written hidden; do ln $each other && rm $each && ln other $each && rm other; done"
_ATTEMPT = "cat hidden; echo changed > written; echo '[alias] a = !true' >> .git/config"
_CONNECT = "import socket; socket.socket(socket.AF_UNIX).connect('late.sock')"


@pytest.fixture
def held(place: Path) -> dict[str, Any]:
    """What a command finds hidden and protected there."""
    for name in ("written", "hidden"):
        (place / name).write_text("as it was")
    subprocess.run(["git", "init", "-q", str(place)], check=True, timeout=40)
    return {"filesystem": {"deny_write": ["written"], "deny_read": ["hidden"]}}


@pytest.mark.threat("T-P15")
@pytest.mark.parametrize("who", ["a command of another manager", "a program outside"])
def test_a_file_that_loses_its_name_and_gets_it_again_is_held(
    who: str, held: dict[str, Any], place: Path, used: list[bool]
) -> None:
    """That takes the mount away that holds it, and it is the same file as before. The control: the name did change."""

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        before = [(place / name).stat().st_ctime_ns for name in ("written", "hidden")]
        if who == "a program outside":
            await asyncio.to_thread(_name_again, place)
        else:
            async with SandboxManager({"sandbox": {}}) as other:
                assert (await other.run(["sh", "-c", _NAME_AGAIN])).returncode == 0
        assert all(now > then for now, then in zip(_changed(place), before, strict=True))
        done = await manager.run(["sh", "-c", _ATTEMPT])
        assert done.text == ""
        assert done.stderr.count(b"Read-only") == 2

    run_all(work, **held)
    assert used == [False]
    assert (place / "written").read_text() == "as it was"
    assert "alias" not in (place / ".git" / "config").read_text()


def _name_again(place: Path) -> None:
    subprocess.run(["sh", "-c", _NAME_AGAIN], check=True, timeout=40)
    (place / "config").hardlink_to(place / ".git" / "config")
    (place / ".git" / "config").unlink()
    (place / "config").rename(place / ".git" / "config")


def _changed(place: Path) -> list[int]:
    return [(place / name).stat().st_ctime_ns for name in ("written", "hidden")]


@pytest.mark.threat("T-P15")
def test_a_socket_that_is_bound_again_is_dead(place: Path, used: list[bool]) -> None:
    """As that of a server that was started again. The control: outside it answers."""

    first = _listener()

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        first.close()
        (place / "late.sock").unlink()
        with _listener():
            control = await asyncio.create_subprocess_exec(*python(_CONNECT))
            assert await control.wait() == 0
            done = await manager.run(python(_CONNECT))
            assert b"PermissionError" in done.stderr or b"ConnectionRefusedError" in done.stderr

    run_all(work)
    assert used == [False]


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("late.sock")
    listener.listen()
    return listener


@pytest.mark.threat("T-P13")
def test_rules_that_change_while_they_are_read_are_those_of_now(place: Path, used: list[bool]) -> None:
    """The gateway has read them, and the runner has looked at nothing yet."""
    os.environ["API_KEY"] = "the-value-0123456789"
    file = Path(secret_file(place.parent))
    others = set(descendants_of(os.getpid()))

    def change_between() -> None:
        runner, gateway = _pair(others)
        os.kill(runner, signal.SIGSTOP)
        wait_until(lambda: _waits(gateway), "the gateway has read its rules")
        file.write_text(file.read_text().replace("api.test", "now.test"))
        os.kill(runner, signal.SIGCONT)

    async def work(manager: SandboxManager) -> None:
        assert manager._stock is not None
        manager._stock._drop()
        others.update(descendants_of(os.getpid()))
        manager._stock.fill(manager.environ())
        await asyncio.to_thread(change_between)
        await manager._stock.stand()
        done = await manager.run(["true"])
        assert "now.test" in done.said
        assert "api.test" not in done.said

    try:
        run_all(work, secrets=str(file))
    finally:
        del os.environ["API_KEY"]
    assert used == [False]


def _pair(others: set[int]) -> tuple[int, int]:
    """The runner that is new, and its first child."""
    found: list[tuple[int, int]] = []

    def look() -> bool:
        for pid in set(descendants_of(os.getpid())) - others:
            found.extend((pid, child) for child in children_of(pid)[:1])
        return bool(found)

    deadline = time.monotonic() + 20
    while not look() and time.monotonic() < deadline:
        pass
    return found[0]


def _waits(pid: int) -> bool:
    """Many looks in a row: it is not only between two steps."""
    for _ in range(40):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            return False
        time.sleep(0.01)
    return True


@pytest.mark.threat("T-P13")
def test_what_stays_of_a_hidden_folder_is_that_of_now(place: Path, used: list[bool]) -> None:
    """The command has a copy of it."""
    folder = place.parent / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "id_rsa").write_text("a key")
    (folder / "known_hosts").write_text("revoked.test")
    read = ["cat", str(folder / "known_hosts")]

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert (await manager.run(read)).text == "revoked.test"
        await standing(manager)
        (folder / "known_hosts").write_text("other.test")
        assert (await manager.run(read)).text == "other.test"

    run_all(work)
    assert used == [True, False]


# A machine in small: a folder of people with something mounted in it, a home directory, a project.
_MACHINE = """
set -e
mount -t tmpfs -o mode=755 exeat-test /mnt
mkdir -p /mnt/people/mounted /mnt/people/folder /mnt/people/home/project/data
mount -t tmpfs exeat-test /mnt/people/mounted
cd /mnt/people
echo before > file
echo before > folder/file
echo before > one
echo now > two
ln -s one link
mount -t tmpfs exeat-test /sys/fs/cgroup
echo 1000000000 > /sys/fs/cgroup/memory.max
chmod -R a+rwX /mnt/people
cd home/project
exec "$@"
"""
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _MACHINE, "sh")
_CHANGES = {
    "nothing": ("true", "cat /mnt/people/file", "before\n", True),
    "a file": ("echo now > /mnt/people/file", "cat /mnt/people/file", "now\n", None),
    "a new name": ("echo now > /mnt/people/new", "cat /mnt/people/new", "now\n", None),
    "a folder of the same name": (
        "cd /mnt/people; mv folder was; mkdir folder; echo now > folder/file", "cat /mnt/people/folder/file", "now\n",
        None,
    ),
    "a link": ("ln -sfn two /mnt/people/link", "cat /mnt/people/link", "now\n", None),
    "a mount in the project": (
        "mount -t tmpfs exeat-test /mnt/people/home/project/data; echo now > /mnt/people/home/project/data/file",
        "cat data/file", "now\n", False,
    ),
    "a mount at home": (
        "mkdir /mnt/people/home/data; mount -t tmpfs exeat-test /mnt/people/home/data; "
        "echo now > /mnt/people/home/data/file",
        "cat /mnt/people/home/data/file", "now\n", False,
    ),
    "the memory that is left": (
        "echo 200000000 > /sys/fs/cgroup/memory.max", "echo less", "less\n", False,
    ),
}  # fmt: skip


@AS_ROOT
@BY_USER
@pytest.mark.threat("T-P13")
@pytest.mark.parametrize(("change", "command", "text", "is_used"), _CHANGES.values(), ids=_CHANGES)
def test_the_machine_of_now_is_seen(
    change: str, command: str, text: str, is_used: bool | None, uid: int | None
) -> None:
    """Also where the jail has copies of it, which depends on who makes it, and not in a layer that is larger than the
    memory.
    """
    with ahead({}, Path("/mnt/people/home/project"), uid=uid, before=_OWN_MOUNTS) as program:
        assert program.stands()
        inside = ["nsenter", f"--mount=/proc/{program.pid}/ns/mnt", "sh", "-c", change]
        subprocess.run(inside, check=True, timeout=40)
        ran = program.run("sh", "-c", command)
    assert (ran.text, ran.errors) == (text, "")
    if is_used is not None:
        assert ran.is_used == is_used


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


def test_the_host_s_own_files_can_be_had_ahead(place: Path, used: list[bool]) -> None:
    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert (await manager.run(["pwd"])).text == f"{place}\n"

    run_all(work, filesystem={"mode": "host"})
    assert used == [True]
