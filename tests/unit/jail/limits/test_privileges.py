"""Privileges are lost for good, and a hidden process cannot be read. Each in a forked child, next to one that can."""

from __future__ import annotations

import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ExeatError
from exeat.jail import libc
from exeat.jail.limits import privileges
from exeat.jail.limits.privileges import drop_all, hide_memory
from tests.support.jails.forked import NOBODY, UIDS, attempt, become

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="capabilities are a part of Linux")

BY_UID = pytest.mark.parametrize("uid", UIDS, ids=lambda uid: f"uid{uid}")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has capabilities to lose")
LOCKED = 0xEF  # every securebit but KEEP_CAPS, and every lock


def status() -> dict[str, int]:
    """The sets of this process as /proc shows them: a second witness besides capget and prctl."""
    lines = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value, 16) for name, value in lines if name.startswith("Cap") or name == "NoNewPrivs"}


NOTHING = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0, "NoNewPrivs": 1}


def expect_nothing_left() -> None:
    assert status() == NOTHING
    assert libc.prctl(libc.PR_GET_SECUREBITS) == LOCKED


def make_packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def raise_ambient() -> None:
    """Put CAP_NET_RAW where it would survive exec by anybody."""
    effective, permitted, _ = privileges._get_capabilities()
    low = 0xFFFFFFFF
    sets = struct.pack("=6I", effective & low, permitted & low, 1 << 13, effective >> 32, permitted >> 32, 0)
    libc.call("capset", privileges._CAPABILITY_HEADER, sets)
    libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_RAISE, 13)
    assert status()["CapAmb"] == status()["CapInh"] == 1 << 13


def enter_user_namespace() -> None:
    libc.unshare(libc.CLONE_NEWUSER)
    assert status()["CapEff"] != 0


def need_user_namespaces() -> None:
    answer = attempt(enter_user_namespace, uid=UIDS[-1])
    if answer != "ok":
        pytest.skip(f"user namespaces: this machine says {answer} to uid {UIDS[-1]}")


def execute_and_show_capabilities() -> None:
    """As a program started from here would see itself: exit 0 if it has a capability."""
    os.execv("/bin/grep", ["grep", "-Eq", "^Cap(Prm|Eff):.*[1-9a-f]", "/proc/self/status"])


@AS_ROOT
def test_root_drops_everything() -> None:
    assert attempt(make_packet_socket) == "ok"
    assert attempt(drop_all, expect_nothing_left) == "ok"
    assert attempt(drop_all, make_packet_socket) == "EPERM"


@AS_ROOT
def test_ambient_and_inheritable_capabilities_go_too() -> None:
    assert attempt(raise_ambient, drop_all, expect_nothing_left) == "ok"


@AS_ROOT
def test_a_capability_that_is_permitted_but_asleep_is_used_to_drop() -> None:
    def sleep() -> None:
        _, permitted, _ = privileges._get_capabilities()
        privileges._set_capabilities(effective=0, permitted=permitted)

    assert attempt(sleep, lambda: libc.prctl(libc.PR_CAPBSET_DROP, 13)) == "EPERM"
    assert attempt(sleep, drop_all, expect_nothing_left) == "ok"


@AS_ROOT
def test_uid_0_gets_nothing_back_by_exec() -> None:
    assert attempt(execute_and_show_capabilities) == "exit 0"
    assert attempt(drop_all, execute_and_show_capabilities) == "exit 1"


@AS_ROOT
def test_a_set_uid_program_gives_nothing() -> None:
    # Not below pytest's folder, which others cannot enter; and no others than ours may enter this one.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, 0, NOBODY)
        Path(folder).chmod(0o710)
        program = Path(folder) / "grep"
        program.write_bytes(Path("/bin/grep").read_bytes())
        program.chmod(0o4755)

        def execute() -> None:
            os.execv(program, ["grep", "-Eq", "^CapEff:.*[1-9a-f]", "/proc/self/status"])

        without = attempt(execute, uid=NOBODY)
        assert attempt(drop_all, execute, uid=NOBODY) == "exit 1"
    if without != "exit 0":
        pytest.skip(f"set-uid programs: not honoured in /var/tmp ({without})")


def test_a_process_in_a_user_namespace_drops_everything() -> None:
    need_user_namespaces()
    assert attempt(enter_user_namespace, drop_all, expect_nothing_left, uid=UIDS[-1]) == "ok"
    assert attempt(enter_user_namespace, lambda: libc.unshare(libc.CLONE_NEWNET), uid=UIDS[-1]) == "ok"
    assert attempt(enter_user_namespace, drop_all, lambda: libc.unshare(libc.CLONE_NEWNET), uid=UIDS[-1]) == "EPERM"


def test_root_of_a_user_namespace_gets_nothing_back_by_exec() -> None:
    need_user_namespaces()
    uid = UIDS[-1]

    def become_its_root() -> None:
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # else /proc/self is not ours after a change of user
        enter_user_namespace()
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        assert os.getuid() == 0

    assert attempt(become_its_root, execute_and_show_capabilities, uid=uid) == "exit 0"
    assert attempt(become_its_root, drop_all, execute_and_show_capabilities, uid=uid) == "exit 1"


def test_somebody_without_capabilities_gets_no_new_privs() -> None:
    """The bounding set cannot be emptied without CAP_SETPCAP. It is not used either."""

    def check() -> None:
        assert status() | {"CapBnd": 0} == NOTHING

    assert attempt(drop_all, check, uid=UIDS[-1]) == "ok"


@BY_UID
def test_dropping_twice_is_the_same_as_once(uid: int) -> None:
    assert attempt(drop_all, drop_all, uid=uid) == "ok"


@AS_ROOT
@pytest.mark.parametrize(
    ("option", "left"),
    [
        (libc.PR_SET_NO_NEW_PRIVS, "no_new_privs"),
        (libc.PR_CAPBSET_DROP, "bounding set"),
        (libc.PR_SET_SECUREBITS, "securebits"),
    ],
)
def test_what_is_left_is_an_error(option: int, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that says yes and does nothing."""
    real = libc.prctl
    monkeypatch.setattr(libc, "prctl", lambda asked, *args: 0 if asked == option else real(asked, *args))
    assert attempt(_expect_left(left)) == "ok"


@AS_ROOT
def test_capabilities_that_are_left_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "_set_capabilities", lambda **_: None)
    assert attempt(_expect_left("capabilities")) == "ok"


def _expect_left(left: str) -> Callable[[], None]:
    def step() -> None:
        with pytest.raises(ExeatError, match=f"^privileges could not be dropped: {left}$"):
            drop_all()

    return step


def _read_child(*, hidden: bool) -> Callable[[], None]:
    """Start a child of the same user that holds a secret, and read its memory as a debugger would."""

    def step() -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            libc.prctl(libc.PR_SET_DUMPABLE, 1)  # as after an exec; a change of user has switched it off
            if hidden:
                hide_memory()
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
        try:
            Path(f"/proc/{pid}/environ").read_bytes()
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    return step


def test_memory_is_hidden_from_the_same_user() -> None:
    assert attempt(_read_child(hidden=False), uid=UIDS[-1]) == "ok"
    assert attempt(_read_child(hidden=True), uid=UIDS[-1]) == "EACCES"


@BY_UID
def test_no_core_is_written(uid: int) -> None:
    """The kernel writes none of a process that is not dumpable, whatever the limit."""

    def check() -> None:
        assert libc.prctl(libc.PR_GET_DUMPABLE) == 0

    def allow() -> None:
        libc.prctl(libc.PR_SET_DUMPABLE, 1)

    with pytest.raises(pytest.fail.Exception, match="AssertionError"):
        attempt(allow, check, uid=uid)
    assert attempt(allow, hide_memory, check, uid=uid) == "ok"


def test_becoming_somebody_leaves_no_capability() -> None:
    """What the tests as another user rest on."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who can become someone else")

    def check() -> None:
        become(NOBODY)
        assert status()["CapEff"] == status()["CapPrm"] == 0

    assert attempt(check) == "ok"
