"""Namespaces inside the jail: the filter's decisions for both machines, and who is told of what it refuses."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable

import pytest

from exeat.errors import ExeatError
from exeat.jail import libc
from exeat.jail.limits.nesting import Attempts, install_filter
from exeat.jail.limits.seccomp import ALLOW, NO_NESTING, NUMBERS, TELL, Nesting, build_filter
from tests.support.jails.forked import NOBODY, attempt, become
from tests.unit.jail.limits.filter_program import ARCH, HIGH, MACHINES, run

USER = libc.CLONE_NEWUSER
_EVERY_KIND = (
    libc.CLONE_NEWNS, libc.CLONE_NEWCGROUP, libc.CLONE_NEWUTS, libc.CLONE_NEWIPC, libc.CLONE_NEWPID, libc.CLONE_NEWNET,
)  # fmt: skip
_SIGCHLD = 17


def _verdict(nesting: Nesting, machine: str, name: str, *args: int) -> str:
    action = run(build_filter(machine, nesting=nesting), ARCH[machine], NUMBERS[machine][name], *args).action
    if action in (ALLOW, TELL):
        return "allow" if action == ALLOW else "tell"
    return errno.errorcode[action & 0xFFFF]


@MACHINES
def test_namespaces_are_made_with_nest_alone(machine: str) -> None:
    nest = Nesting(allowed=True, control_groups=True)
    for flags in (USER, *_EVERY_KIND, USER | sum(_EVERY_KIND)):
        assert _verdict(nest, machine, "clone", flags | _SIGCHLD) == "allow"
        assert _verdict(nest, machine, "unshare", flags) == "allow"
        assert _verdict(NO_NESTING, machine, "clone", flags | _SIGCHLD) == "EPERM"
        assert _verdict(NO_NESTING, machine, "unshare", flags) == "EPERM"
    assert _verdict(nest, machine, "unshare", libc.CLONE_NEWTIME) == "allow"
    assert _verdict(nest, machine, "setns", 3, 0) == "allow"
    assert _verdict(NO_NESTING, machine, "setns", 3, 0) == "EPERM"


@MACHINES
def test_flags_that_are_not_known_stay_refused(machine: str) -> None:
    nest = Nesting(allowed=True, control_groups=True)
    known = sum((USER, *_EVERY_KIND)) | libc.CLONE_NEWTIME | 0x50F00
    for bit in range(32):
        expected = "allow" if 1 << bit & known else "EPERM"
        assert _verdict(nest, machine, "unshare", 1 << bit) == expected, bit


@MACHINES
def test_control_groups_can_be_left_out(machine: str) -> None:
    nest = Nesting(allowed=True)
    for high in (0, HIGH):
        assert _verdict(nest, machine, "clone", USER | libc.CLONE_NEWCGROUP | high) == "EPERM"
        assert _verdict(nest, machine, "unshare", libc.CLONE_NEWCGROUP | high) == "EPERM"
    assert _verdict(nest, machine, "unshare", USER | libc.CLONE_NEWNS) == "allow"


@MACHINES
@pytest.mark.parametrize(
    "name",
    [
        *("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "add_key", "request_key", "keyctl"),
        *("perf_event_open", "bpf", "userfaultfd"),
    ],
)
def test_all_else_stays_refused_with_nest(machine: str, name: str) -> None:
    answer = _verdict(NO_NESTING, machine, name)
    assert answer != "allow"
    assert _verdict(Nesting(allowed=True), machine, name) == answer


@MACHINES
def test_sockets_and_terminals_are_the_same_with_nest(machine: str) -> None:
    """Raw and packet sockets and netfilter are refused in every network, the program's own ones included."""
    nest = Nesting(allowed=True, control_groups=True)
    for family in range(48):
        for kind, protocol in ((1, 0), (2, 0), (3, 0), (3, 12), (3, 255)):
            before = _verdict(NO_NESTING, machine, "socket", family, kind, protocol)
            assert _verdict(nest, machine, "socket", family, kind, protocol) == before
    for request in (0x5412, 0x541C):
        assert _verdict(nest, machine, "ioctl", 0, request) == "EPERM"


@MACHINES
def test_only_user_namespaces_are_told_of(machine: str) -> None:
    tell = Nesting(tell=True)
    for high in (0, HIGH):
        assert _verdict(tell, machine, "clone", USER | _SIGCHLD | high) == "tell"
        assert _verdict(tell, machine, "unshare", USER | libc.CLONE_NEWNET | high) == "tell"
    for flags in _EVERY_KIND:
        assert _verdict(tell, machine, "clone", flags | _SIGCHLD) == "EPERM"
        assert _verdict(tell, machine, "unshare", flags) == "EPERM"
    assert _verdict(tell, machine, "clone3") == "ENOSYS"
    assert _verdict(tell, machine, "clone", _SIGCHLD) == "allow"


def test_a_shared_network_has_no_nest() -> None:
    with pytest.raises(ExeatError, match="shares the host's network"):
        build_filter("x86_64", shared_network=True, nesting=Nesting(allowed=True))


# In the kernel

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="seccomp is a part of Linux")


def _watched(command: Callable[[], None]) -> tuple[list[str], int]:
    """Run this in a forked child under a filter that tells, with an init's loop next to it. Who was named; its end."""
    names: list[str] = []
    attempts = Attempts(names.append)
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            if os.geteuid() == 0:
                become(NOBODY)
            libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
            install_filter(attempts, NO_NESTING, unix_sockets=True, shared_network=False)
            command()
            status = 0
        except OSError as error:
            status = error.errno or 98
        finally:
            os._exit(status)
    poll = select.poll()
    attempts.watch(poll)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        attempts.take(dict(poll.poll(100)))
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return names, os.waitstatus_to_exitcode(status)
    pytest.fail("the child waits for an answer that does not come")


def test_who_tried_is_named_and_refused() -> None:
    assert attempt(lambda: libc.unshare(USER), uid=NOBODY if os.geteuid() == 0 else None) == "ok", "the control"
    with open("/proc/self/comm") as file:
        own = file.read().strip()
    names, status = _watched(lambda: libc.unshare(USER))
    assert (names, status) == ([own], errno.EPERM)


def test_each_name_is_told_once_and_made_printable() -> None:
    def rename_and_try() -> None:
        for name in (b"one", b"two\x1b[31m\xff\n", b"one"):
            libc.call("prctl", 15, name, 0, 0, 0)
            with pytest.raises(PermissionError):
                libc.unshare(USER)

    names, status = _watched(rename_and_try)
    assert (names, status) == (["one", "two?[31m?"], 0)


def test_names_are_bounded() -> None:
    def try_often() -> None:
        for number in range(40):
            libc.call("prctl", 15, b"program %d" % number, 0, 0, 0)
            with pytest.raises(PermissionError):
                libc.unshare(USER)

    names, status = _watched(try_often)
    assert (len(names), status) == (8, 0)


def test_a_caller_that_is_killed_while_it_waits_does_no_harm() -> None:
    def kill_a_waiting_child() -> None:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                while True:
                    with pytest.raises(PermissionError):
                        libc.unshare(USER)
            os.kill(child, 9)
            os.waitpid(child, 0)
        libc.unshare(USER)

    assert _watched(kill_a_waiting_child)[1] == errno.EPERM


def test_nothing_is_told_of_a_command_that_makes_none() -> None:
    assert _watched(lambda: os.close(os.dup(0))) == ([], 0)


def test_where_there_is_a_listener_already_it_is_refused_all_the_same() -> None:
    """An outer sandbox may have one, and the kernel has room for one alone."""

    def twice() -> None:
        install_filter(Attempts(lambda name: None), NO_NESTING, unix_sockets=True, shared_network=False)
        libc.unshare(USER)

    assert _watched(twice)[1] == errno.EPERM
