"""The system call filter for a jail that shares the host's network: what makes packets of no uid is refused."""

from __future__ import annotations

import errno
import socket

import pytest

from exeat.jail.limits.seccomp import ALLOW, NUMBERS, build_filter
from tests.unit.jail.limits.filter_program import ARCH, HIGH, MACHINES, run

IP, IPV6, TCP = socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.IPPROTO_TCP
MPTCP = 262


def verdict(machine: str, name: str, *args: int, shared_network: bool = True) -> str:
    program = build_filter(machine, shared_network=shared_network)
    action = run(program, ARCH[machine], NUMBERS[machine][name], *args).action
    return "allow" if action == ALLOW else errno.errorcode[action & 0xFFFF]


@MACHINES
def test_nothing_listens(machine: str) -> None:
    assert verdict(machine, "listen", 3, 128) == "EACCES"
    assert verdict(machine, "listen", 3, 128, shared_network=False) == "allow"


@MACHINES
@pytest.mark.parametrize(
    ("level", "option"),
    [
        *((IP, option) for option in (socket.IP_ADD_MEMBERSHIP, 39, 41, 42, 46, 48)),
        *((IPV6, option) for option in (socket.IPV6_JOIN_GROUP, 27, 42, 46, 48)),
        *((socket.SOL_SOCKET, option) for option in (25, 62)),  # BINDTODEVICE, BINDTOIFINDEX
        *((IP, option) for option in (4, 32, 50)),  # OPTIONS, MULTICAST_IF, UNICAST_IF
        *((IPV6, option) for option in (6, 9, 17, 50, 54, 55, 57, 59, 76)),
        (TCP, 31),  # ULP
        (IP, 15),  # IP_FREEBIND
        (IPV6, 78),  # IPV6_FREEBIND
    ],
)
def test_ways_are_not_chosen_groups_not_joined_and_addresses_not_made_up(machine: str, level: int, option: int) -> None:
    assert verdict(machine, "setsockopt", 3, level, option) == "EPERM"
    assert verdict(machine, "setsockopt", 3, HIGH | level, HIGH | option) == "EPERM"  # the kernel drops the upper half
    assert verdict(machine, "setsockopt", 3, level, option, shared_network=False) == "allow"


@MACHINES
@pytest.mark.parametrize(
    ("level", "option"),
    [
        (socket.SOL_SOCKET, socket.SO_REUSEADDR),
        (socket.SOL_SOCKET, 42),
        (socket.SOL_SOCKET, 15),  # SO_REUSEPORT
        (TCP, socket.TCP_NODELAY),
        (IP, socket.IP_TOS),
        (IP, 20),
        (IPV6, socket.IPV6_V6ONLY),
        (IPV6, 15),
    ],
)
def test_other_options_are_set(machine: str, level: int, option: int) -> None:
    assert verdict(machine, "setsockopt", 3, level, option) == "allow"


@MACHINES
@pytest.mark.parametrize(("length", "answer"), [(12, "allow"), (13, "EACCES"), (110, "EACCES"), (128, "EACCES")])
def test_addresses_are_bound_to_netlink_sockets_only(machine: str, length: int, answer: str) -> None:
    assert verdict(machine, "bind", 3, 0, length) == answer
    assert verdict(machine, "bind", 3, 0, HIGH | length) == answer
    assert verdict(machine, "bind", 3, 0, length, shared_network=False) == "allow"


@MACHINES
@pytest.mark.parametrize("length", [16, 28])
def test_binding_an_internet_socket_is_said_to_have_worked(machine: str, length: int) -> None:
    program = build_filter(machine, shared_network=True)
    assert run(program, ARCH[machine], NUMBERS[machine]["bind"], 3, 0, length).action == 0x00050000


@MACHINES
def test_the_kernel_opens_no_flows_of_its_own(machine: str) -> None:
    assert verdict(machine, "socket", socket.AF_INET, socket.SOCK_STREAM, MPTCP) == "EPROTONOSUPPORT"
    assert verdict(machine, "socket", socket.AF_INET, socket.SOCK_STREAM, MPTCP, shared_network=False) == "allow"
    assert verdict(machine, "socket", socket.AF_INET, socket.SOCK_STREAM, TCP) == "allow"
