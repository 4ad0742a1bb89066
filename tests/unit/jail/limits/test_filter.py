"""The system call filter's decisions, for both machines, by running its program in a small BPF interpreter.

This is how aarch64 is tested on x86_64. That a kernel agrees with the interpreter is shown in test_seccomp.py.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from exeat.errors import ExeatError
from exeat.jail.limits.seccomp import ALLOW, KILL_PROCESS, NUMBERS, build_filter, build_groups_kept
from tests.support.programs import give_up
from tests.unit.jail.limits.filter_program import ARCH, HIGH, MACHINES, Verdict, run

FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}  # i386, arm


def verdict(machine: str, name: str, *args: int, unix_sockets: bool = True) -> str:
    """What the filter says to a call by name: "allow", or the name of the errno."""
    program = build_filter(machine, unix_sockets=unix_sockets)
    action = run(program, ARCH[machine], NUMBERS[machine][name], *args).action
    if action == ALLOW:
        return "allow"
    assert action >> 16 == 5, f"{action:#x} is no errno"
    return errno.errorcode[action & 0xFFFF]


@MACHINES
def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    program = build_filter(machine)
    others = {*ARCH.values(), *FOREIGN.values(), 0} - {ARCH[machine]}
    for arch in others:
        assert {run(program, arch, number).action for number in range(500)} == {KILL_PROCESS}
    assert run(program, ARCH[machine], 0).action == ALLOW


def test_x32_numbers_are_refused() -> None:
    program = build_filter("x86_64")
    for number in (0, 41, 47, 512, 547):
        assert run(program, ARCH["x86_64"], 0x40000000 | number).action & 0xFFFF == errno.EPERM
    assert run(program, ARCH["x86_64"], 0x3FFFFFFF).action == ALLOW  # no such call, as the kernel will say


@MACHINES
def test_all_else_is_allowed_without_a_look_at_arguments(machine: str) -> None:
    """The kernel skips the filter for such numbers. One look at an argument on the way, and each call would pay."""
    program = build_filter(machine)
    for number in set(range(600)) - set(NUMBERS[machine].values()):
        assert run(program, ARCH[machine], number) == Verdict(ALLOW, {0, 4}), number


@MACHINES
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("io_uring_setup", "ENOSYS"),
        ("io_uring_enter", "ENOSYS"),
        ("io_uring_register", "ENOSYS"),
        ("clone3", "ENOSYS"),
        ("setns", "EPERM"),
        ("add_key", "ENOSYS"),
        ("request_key", "ENOSYS"),
        ("keyctl", "ENOSYS"),
        ("perf_event_open", "EACCES"),
        ("bpf", "EPERM"),
        ("userfaultfd", "EPERM"),
    ],
)
def test_some_calls_are_refused_whatever_the_arguments(machine: str, name: str, answer: str) -> None:
    for args in ((), (1, 2, 3), (-1, -1, -1, -1, -1, -1)):
        assert verdict(machine, name, *args) == answer


@MACHINES
def test_only_four_families_are_made(machine: str) -> None:
    made = {family for family in range(-1, 256) if verdict(machine, "socket", family, 1, 0) == "allow"}
    assert made == {1, 2, 10, 16}
    assert verdict(machine, "socket", 40, 1, 0) == "EAFNOSUPPORT"
    assert verdict(machine, "socket", 17, 3, 0x0300) == "EAFNOSUPPORT"


@MACHINES
@pytest.mark.parametrize("family", [2, 10])
def test_internet_sockets_are_streams_or_datagrams_of_known_protocols(machine: str, family: int) -> None:
    flags = (0, 0x800, 0x80000, 0x80800)
    for flag in flags:
        for kind in (1, 2):
            allowed = {p for p in range(300) if verdict(machine, "socket", family, kind | flag, p) == "allow"}
            assert allowed == {0, 6, 17, 262}
            assert verdict(machine, "socket", family, kind | flag, 132) == "EPROTONOSUPPORT"
        assert verdict(machine, "socket", family, 3 | flag, 6) == "EPERM"
        for kind in (0, 4, 5, 6, 7, 8, 9, 10, 15, 16, 0x100001):
            assert verdict(machine, "socket", family, kind | flag, 0) == "ESOCKTNOSUPPORT"


@MACHINES
def test_netlink_is_for_routes(machine: str) -> None:
    for kind in (2, 3, 3 | 0x80000):
        assert {p for p in range(-1, 64) if verdict(machine, "socket", 16, kind, p) == "allow"} == {0}
    assert verdict(machine, "socket", 16, 3, 9) == "EPROTONOSUPPORT"


@MACHINES
def test_unix_sockets_can_be_refused_and_pairs_cannot(machine: str) -> None:
    assert verdict(machine, "socket", 1, 1, 0, unix_sockets=False) == "EAFNOSUPPORT"
    assert verdict(machine, "socket", 1 | HIGH, 1, 0, unix_sockets=False) == "EAFNOSUPPORT"
    assert verdict(machine, "socket", 2, 1, 0, unix_sockets=False) == "allow"
    assert verdict(machine, "socketpair", 1, 1, 0, unix_sockets=False) == "allow"
    assert {family for family in range(64) if verdict(machine, "socketpair", family, 1, 0) == "allow"} == {1}


@MACHINES
@pytest.mark.parametrize("bit", range(32))
def test_a_new_namespace_is_refused_by_each_of_its_bits(machine: str, bit: int) -> None:
    namespaces = {7, 17, 25, 26, 27, 28, 29, 30}
    harmless_alone = {8, 9, 10, 11, 16, 18}
    flag = 1 << bit
    for high in (0, HIGH, 0xFFFFFFFF << 32):
        clone = "EPERM" if bit in namespaces - {7} else "allow"
        assert verdict(machine, "clone", flag | 17 | high) == clone
        assert verdict(machine, "unshare", flag | high) == ("allow" if bit in harmless_alone else "EPERM")


@MACHINES
def test_what_fork_vfork_and_threads_ask_for_is_allowed(machine: str) -> None:
    fork, vfork, thread = 0x01200011, 0x4111, 0x003D0F00
    assert [verdict(machine, "clone", flags) for flags in (fork, vfork, thread)] == ["allow"] * 3
    assert verdict(machine, "unshare", 0) == "allow"


@MACHINES
@pytest.mark.parametrize(("name", "process", "others"), [("setpriority", 0, (1, 2)), ("ioprio_set", 1, (0, 2, 3))])
def test_priorities_are_changed_by_process_only(machine: str, name: str, process: int, others: tuple[int, ...]) -> None:
    assert verdict(machine, name, process, 0, 5) == "allow"
    for other in others:
        assert verdict(machine, name, other, 0, 5) == verdict(machine, name, other | HIGH, 0, 5) == "EPERM"


@MACHINES
def test_nothing_is_typed_into_terminals(machine: str) -> None:
    for request in (0x5412, 0x541C):
        assert verdict(machine, "ioctl", 0, request) == "EPERM"
        assert verdict(machine, "ioctl", 0, request | HIGH) == "EPERM"
    for request in (0x5401, 0x5413, 0x541B, 0x540E, 0x5411, 0x541D):
        assert verdict(machine, "ioctl", 0x5412, request, 0x5412) == "allow"


@MACHINES
def test_no_snapshot_brings_hidden_files_into_the_project(machine: str) -> None:
    """Btrfs takes any file of its owner's for the subvolume to copy, before Linux 6.8."""
    for request in (0x50009401, 0x50009417):
        assert verdict(machine, "ioctl", 3, request) == "EPERM"
        assert verdict(machine, "ioctl", 3, request | HIGH) == "EPERM"
    assert verdict(machine, "ioctl", 3, 0x40049409) == "allow"  # FICLONE, by which files are copied


@MACHINES
def test_the_upper_half_of_an_argument_changes_nothing(machine: str) -> None:
    for args in ((40, 1, 0), (2, 3, 0), (2, 1, 132), (16, 3, 9), (17, 3, 0), (2, 1, 0), (16, 3, 0), (1, 1, 0)):
        for high in (HIGH, 0x80000000 << 32, 0xFFFFFFFF << 32):
            for index in range(3):
                raised = [value | high if at == index else value for at, value in enumerate(args)]
                assert verdict(machine, "socket", *raised) == verdict(machine, "socket", *args)


@pytest.mark.parametrize("machine", ["i686", "armv7l", "s390x", "riscv64", "ppc64le", "arm64", "X86_64", ""])
def test_a_machine_it_does_not_know_is_an_error(machine: str) -> None:
    with pytest.raises(ExeatError, match=f"no system call filter for {machine}"):
        build_filter(machine)


@pytest.mark.parametrize(
    ("machine", "headers"),
    [
        ("x86_64", ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"]),
        ("aarch64", ["/usr/include/asm-generic/unistd.h"]),
    ],
)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str, headers: list[str]) -> None:
    found = [Path(header) for header in headers if Path(header).is_file()]
    if not found:
        give_up(f"{' or '.join(headers)}: not there (package linux-libc-dev)")
    known = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", found[0].read_text(), re.MULTILINE))
    assert NUMBERS[machine] == {name: int(known[name]) for name in NUMBERS[machine]}


@MACHINES
def test_groups_that_are_kept_are_said_to_be_given_away(machine: str) -> None:
    program = build_groups_kept(machine)
    assert run(program, ARCH[machine], NUMBERS[machine]["setgroups"], 0, 0).action == 0x00050000  # an error of number 0
    assert verdict(machine, "setgroups") == "allow", "a jail's filter leaves it alone"
    assert run(program, FOREIGN[machine], NUMBERS[machine]["setgroups"]).action == KILL_PROCESS
    for number in set(range(600)) - {NUMBERS[machine]["setgroups"]}:
        assert run(program, ARCH[machine], number).action == ALLOW
