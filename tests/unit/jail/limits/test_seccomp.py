"""The system call filter in the kernel: each call is tried in a forked child, without the filter and with it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ExeatError
from exeat.jail import libc
from exeat.jail.limits.privileges import drop_all, scope_abstract_sockets
from exeat.jail.limits.seccomp import NUMBERS, build_filter, install
from tests.support.jails.forked import UIDS, attempt
from tests.support.programs import need

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="seccomp is a part of Linux"),
]

_PR_GET_SECCOMP = 21
MACHINE = os.uname().machine
NR = NUMBERS.get(MACHINE, {})
HIGH = 1 << 32
BY_UID = pytest.mark.parametrize("uid", UIDS, ids=lambda uid: f"uid{uid}")


def under_filter() -> None:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    install(build_filter(MACHINE))


def under_filter_without_unix() -> None:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    install(build_filter(MACHINE, unix_sockets=False))


def make_socket(family: int, kind: int, protocol: int = 0) -> Callable[[], object]:
    """socket(2) itself, so that numbers Python does not know and high bits get through."""
    return lambda: os.close(libc.syscall(NR["socket"], family, kind, protocol))


def call(name: str, *args: object) -> Callable[[], object]:
    return lambda: libc.syscall(NR[name], *args)


def clone(flags: int) -> Callable[[], object]:
    def step() -> None:
        _reap(libc.syscall(NR["clone"], flags | signal.SIGCHLD, 0, 0, 0, 0))

    return step


def clone3() -> None:
    arguments = struct.pack("=8Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    _reap(libc.syscall(NR["clone3"], arguments, len(arguments)))


def _reap(pid: int) -> None:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def make_ring() -> None:
    os.close(libc.syscall(NR["io_uring_setup"], 4, ctypes.create_string_buffer(120)))


def enter_own_network() -> None:
    libc.syscall(NR["setns"], os.open("/proc/self/ns/net", os.O_RDONLY), libc.CLONE_NEWNET)


def count_own_events() -> None:
    # A software event that counts nothing, in user space only: the least that can be asked for.
    attributes = struct.pack("=IIQ4xI", 1, 112, 9, 0).ljust(40, b"\0") + struct.pack("=Q", 1 << 5 | 1 << 6)
    os.close(libc.syscall(NR["perf_event_open"], attributes.ljust(112, b"\0"), 0, -1, -1, 0))


def make_map() -> None:
    attributes = struct.pack("=IIII", 2, 4, 4, 1).ljust(120, b"\0")
    os.close(libc.syscall(NR["bpf"], 0, attributes, len(attributes)))


def terminal_ioctl(request: int) -> Callable[[], object]:
    """Make a terminal this process's own, and type into it."""

    def step() -> None:
        _, terminal = pty.openpty()
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        libc.syscall(NR["ioctl"], terminal, request, b"x")

    return step


def expect_refusal(name: str, step: Callable[[], object], answer: str, uid: int | None = None) -> None:
    """The call gets the filter's answer with it, and another without it, or it would prove nothing."""
    without = attempt(step, uid=uid)
    assert attempt(under_filter, step, uid=uid) == answer
    if without == answer:
        pytest.skip(f"{name}: this kernel says {answer} to uid {uid} by itself, without a filter")


REFUSED = {
    "io_uring": (make_ring, "ENOSYS"),
    "io_uring enter": (call("io_uring_enter", -1, 0, 0, 0, 0, 0), "ENOSYS"),
    "io_uring register": (call("io_uring_register", -1, 0, 0, 0), "ENOSYS"),
    "vsock": (make_socket(40, 1), "EAFNOSUPPORT"),
    "vsock, high bit": (make_socket(40 | HIGH, 1), "EAFNOSUPPORT"),
    "packet": (make_socket(17, 3, 0x0300), "EAFNOSUPPORT"),
    "packet, high bit": (make_socket(17 | HIGH, 3, 0x0300), "EAFNOSUPPORT"),
    "packet by its old name": (make_socket(2, 10, 0x0300), "ESOCKTNOSUPPORT"),
    "bluetooth": (make_socket(31, 3, 1), "EAFNOSUPPORT"),
    "crypto": (make_socket(38, 5), "EAFNOSUPPORT"),
    "can": (make_socket(29, 3, 1), "EAFNOSUPPORT"),
    "xdp": (make_socket(44, 3), "EAFNOSUPPORT"),
    "tipc": (make_socket(30, 5), "EAFNOSUPPORT"),
    "a pair of vsocks": (call("socketpair", 40, 1, 0, ctypes.create_string_buffer(8)), "EAFNOSUPPORT"),
    "netlink audit": (make_socket(16, 3, 9), "EPROTONOSUPPORT"),
    "netlink netfilter": (make_socket(16, 3, 12), "EPROTONOSUPPORT"),
    "netlink uevent": (make_socket(16, 3, 15), "EPROTONOSUPPORT"),
    "netlink uevent, high bit": (make_socket(16, 3, 15 | HIGH), "EPROTONOSUPPORT"),
    "netlink diag": (make_socket(16, 3, 4), "EPROTONOSUPPORT"),
    "sctp": (make_socket(2, 1, 132), "EPROTONOSUPPORT"),
    "sctp messages": (make_socket(2, 5, 132), "ESOCKTNOSUPPORT"),
    "udp-lite": (make_socket(2, 2, 136), "EPROTONOSUPPORT"),
    "udp-lite, high bit": (make_socket(2, 2, 136 | HIGH), "EPROTONOSUPPORT"),
    "ping": (make_socket(2, 2, 1), "EPROTONOSUPPORT"),
    "ping v6": (make_socket(10, 2, 58), "EPROTONOSUPPORT"),
    "clone3": (clone3, "ENOSYS"),
    "clone into a user namespace": (clone(libc.CLONE_NEWUSER), "EPERM"),
    "clone into a user namespace, high bit": (clone(libc.CLONE_NEWUSER | HIGH), "EPERM"),
    "clone into a network": (clone(libc.CLONE_NEWUSER | libc.CLONE_NEWNET), "EPERM"),
    "unshare user": (call("unshare", libc.CLONE_NEWUSER), "EPERM"),
    "unshare user and network": (call("unshare", libc.CLONE_NEWUSER | libc.CLONE_NEWNET), "EPERM"),
    "unshare, high bit": (call("unshare", libc.CLONE_NEWUSER | HIGH), "EPERM"),
    "setns on nothing": (call("setns", -1, 0), "EPERM"),
    "add_key": (call("add_key", b"user", b"exeat test", b"x", 1, -2), "ENOSYS"),
    "keyctl": (call("keyctl", 0, -3, 0), "ENOSYS"),
    "request_key": (call("request_key", b"user", b"exeat: no such key", None, 0), "ENOSYS"),
    "perf": (count_own_events, "EACCES"),
    "userfaultfd": (call("userfaultfd", 1), "EPERM"),
    "typing into a terminal": (terminal_ioctl(0x5412), "EPERM"),
    "typing into a terminal, high bit": (terminal_ioctl(0x5412 | HIGH), "EPERM"),
    "pasting into a console": (terminal_ioctl(0x541C), "EPERM"),
}

# The same errno is the kernel's answer to everybody else.
REFUSED_TO_ROOT = {
    "raw": (make_socket(2, 3, 1), "EPERM"),
    "raw, high bit": (make_socket(2, 3 | HIGH, 1), "EPERM"),
    "raw v6": (make_socket(10, 3, 58), "EPERM"),
    "unshare network": (call("unshare", libc.CLONE_NEWNET), "EPERM"),
    "setns": (enter_own_network, "EPERM"),
    "bpf": (make_map, "EPERM"),
}


@BY_UID
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, uid: int) -> None:
    step, answer = REFUSED[name]
    expect_refusal(name, step, answer, uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused these by the filter and not by the kernel")
@pytest.mark.parametrize("name", REFUSED_TO_ROOT)
def test_refused_to_root(name: str) -> None:
    step, answer = REFUSED_TO_ROOT[name]
    expect_refusal(name, step, answer)


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 numbers are a thing of x86_64")
@BY_UID
def test_x32_numbers_are_refused(uid: int) -> None:
    expect_refusal("x32", lambda: libc.syscall(0x40000000 | 110), "EPERM", uid)
    expect_refusal("x32", lambda: libc.syscall(0x40000000 | NR["socket"], 40, 1, 0), "EPERM", uid)


INT80 = """
#include <unistd.h>
int main(void) {
    int pid;
    __asm__ volatile("int $0x80" : "=a"(pid) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
    return pid == getpid() ? 0 : 1;
}
"""


@pytest.mark.skipif(MACHINE != "x86_64", reason="int 0x80 is a thing of x86_64")
def test_a_call_by_the_i386_gate_ends_the_process(tmp_path: Path) -> None:
    need("gcc")
    source, program = tmp_path / "int80.c", tmp_path / "int80"
    source.write_text(INT80)
    subprocess.run(["gcc", "-o", program, source], check=True, timeout=30)

    def execute() -> None:
        os.execv(program, ["int80"])

    without = attempt(execute)
    if without == "SIGSEGV":
        pytest.skip("this kernel has no i386 gate")
    assert without == "exit 0"
    assert attempt(under_filter, execute) == "SIGSYS"


@BY_UID
@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        (1, 1, 0),
        (1, 5, 0),
        (2, 1, 0),
        (2, 1, 6),
        (2, 2 | 0x80800, 17),
        (10, 1, 0),
        (10, 2, 0),
        (16, 3, 0),
        (16, 3 | 0x80000, 0),
        (2 | HIGH, 1 | HIGH, HIGH),
    ],
)
def test_sockets_that_are_made(uid: int, family: int, kind: int, protocol: int) -> None:
    step = make_socket(family, kind, protocol)
    assert attempt(step, uid=uid) == "ok"
    assert attempt(under_filter, step, uid=uid) == "ok"


def test_multipath_tcp_is_the_kernels_to_grant() -> None:
    step = make_socket(2, 1, 262)
    assert attempt(under_filter, step) == attempt(step)


@BY_UID
def test_without_unix_sockets_pairs_are_left(uid: int) -> None:
    assert attempt(under_filter, make_socket(1, 1), uid=uid) == "ok"
    assert attempt(under_filter_without_unix, make_socket(1, 1), uid=uid) == "EAFNOSUPPORT"
    assert attempt(under_filter_without_unix, make_socket(1 | HIGH, 1), uid=uid) == "EAFNOSUPPORT"
    assert attempt(under_filter_without_unix, make_socket(2, 1), uid=uid) == "ok"

    def talk() -> None:
        here, there = socket.socketpair()
        here.sendall(b"hello")
        assert there.recv(5) == b"hello"

    assert attempt(under_filter_without_unix, talk, uid=uid) == "ok"


def start_threads() -> None:
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(8))


def start_programs() -> None:
    subprocess.run(["/bin/true"], check=True)
    subprocess.run(["/bin/sh", "-c", "echo x | cat"], check=True, stdout=subprocess.DEVNULL, start_new_session=True)
    pid = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def talk_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


def list_interfaces() -> None:
    assert socket.if_nameindex()


def use_terminal() -> None:
    _, terminal = pty.openpty()
    termios.tcgetattr(terminal)
    fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8)


def trace_a_child() -> None:
    """What a debugger does first: attach (PTRACE_SEIZE), and let go (PTRACE_DETACH needs a stop, so the end does)."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    libc.call("ptrace", 0x4206, pid, 0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@BY_UID
@pytest.mark.parametrize(
    "step",
    [
        start_threads,
        start_programs,
        talk_over_loopback,
        list_interfaces,
        use_terminal,
        call("unshare", 0x400),
        clone(0),
    ],
)
def test_programs_go_on_as_before(step: Callable[[], object], uid: int) -> None:
    assert attempt(step, uid=uid) == "ok"
    assert attempt(under_filter, step, uid=uid) == "ok"


@BY_UID
@pytest.mark.parametrize("step", [start_threads, start_programs, talk_over_loopback, list_interfaces])
def test_programs_go_on_without_privileges_too(step: Callable[[], object], uid: int) -> None:
    """Everything the command is put under, in the jail's order."""
    assert attempt(drop_all, scope_abstract_sockets, under_filter, step, uid=uid) == "ok"


def test_debuggers_work() -> None:
    assert attempt(under_filter, trace_a_child) == attempt(trace_a_child) == "ok"


@BY_UID
def test_the_filter_outlives_exec_and_cannot_be_taken_off(uid: int) -> None:
    def execute() -> None:
        os.execv("/bin/grep", ["grep", "-q", "^Seccomp:[[:space:]]*2$", "/proc/self/status"])

    assert attempt(execute, uid=uid) == "exit 1"
    assert attempt(under_filter, execute, uid=uid) == "exit 0"
    assert attempt(under_filter, lambda: libc.prctl(libc.PR_SET_SECCOMP, 0), uid=uid) == "EINVAL"


@BY_UID
def test_a_filter_needs_no_new_privs_even_for_root(uid: int) -> None:
    def install_alone() -> None:
        with pytest.raises(ExeatError, match="no_new_privs"):
            install(build_filter(MACHINE))
        assert libc.prctl(_PR_GET_SECCOMP) == 0

    assert attempt(install_alone, uid=uid) == "ok"


@pytest.mark.parametrize("program", [b"", b"\xff" * 8, build_filter("x86_64")[:-8]])
def test_a_program_the_kernel_does_not_take_is_an_error(program: bytes) -> None:
    def install_it() -> None:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        install(program)

    assert attempt(install_it) == errno.errorcode[errno.EINVAL]
