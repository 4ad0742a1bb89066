"""Attacks on jails that wait, by others who work in the same folders or on the same machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from exeat.embed.sandbox_manager import SandboxManager
from tests.support.gateways.scene import wait_until
from tests.support.runs.made_ahead import Ahead, ahead, open_interpreter, run_all, secret_file, standing
from tests.support.runs.running import AS_ROOT, BY_USER, children_of, descendants_of, folder_of, python

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


@BY_USER
@pytest.mark.threat("T-P15")
def test_no_user_finds_a_file_that_was_named_again(uid: int | None) -> None:
    """The control: with no change it is hidden in a jail made ahead, which is used."""
    with folder_of(uid) as home:
        project = home / "project"
        project.mkdir()
        (project / "hidden").write_text("as it was")
        for path in (project, project / "hidden"):
            os.chown(path, *(2 * (os.geteuid() if uid is None else uid,)))
        with ahead({"filesystem": {"deny_read": ["hidden"]}}, project, uid=uid) as program:
            assert program.stands()
            assert _one_of_them_is_used(program, "cat", "hidden", text="")
            (project / "other").hardlink_to(project / "hidden")
            (project / "hidden").unlink()
            (project / "other").rename(project / "hidden")
            assert program.run("cat", "hidden")[:2] == (False, "")


def _one_of_them_is_used(program: Ahead, *command: str, text: str) -> bool:
    """Others on the machine may do what makes a jail useless, but not all the time."""
    for _ in range(20):
        ran = program.run(*command)
        assert ran.text == text
        assert program.stands()
        if ran.is_used:
            return True
    return False


# A machine in small: a folder of people with something mounted in it, a home directory, a project.
_MACHINE = """
set -e
INTERPRETER
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
""".replace("INTERPRETER", open_interpreter())
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
        if is_used:
            assert _one_of_them_is_used(program, "sh", "-c", command, text=text)
            return
        ran = program.run("sh", "-c", command)
    assert (ran.text, ran.errors) == (text, "")
    assert not ran.is_used or is_used is None
