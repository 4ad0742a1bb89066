"""The nft jail shares the machine's interfaces: no packet of its user may leave by one of them.

Each way is tried three times. By another user, which shows that it works. By the jail's uid without a system call
filter, which packet rules and routes must hold alone. By a command in the jail.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from exeat.jail.net import fence
from tests.support.gateways.scene import wait_until
from tests.support.jails.networks import Networks
from tests.support.runs.running import ANYWHERE, AS_ROOT, exeat, python

pytestmark = [AS_ROOT, pytest.mark.threat("T-L7")]
OTHER = 12_345
MARK, PROBE = b"exeat-mark", b"exeat-probe"

WAYS = """
import socket, struct, sys
V4, V6 = socket.AF_INET, socket.AF_INET6
DEVICE = socket.if_nametoindex("cable")
PROBE = b"exeat-probe"
WORLD = {V4: "10.9.0.1", V6: "fd09::1"}

def datagram(family, options=(), ancillary=(), to=None, port=53):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        for option in options:
            s.setsockopt(*option)
        s.sendmsg([PROBE], list(ancillary), 0, to or (WORLD[family], port))

def connect(family, options=(), to=None, bind=None):
    with socket.socket(family) as s:
        for option in options:
            s.setsockopt(*option)
        if bind:
            s.bind(bind)
        s.settimeout(0.3)
        s.connect(to or (WORLD[family], 4444))

def neighbour(port):
    return ("fe80::2", port, 0, DEVICE)

DEVICE_NAME = (socket.SOL_SOCKET, 25, b"cable")
DEVICE_INDEX = (socket.SOL_SOCKET, 62, DEVICE)
BROADCAST = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
INFO4 = (0, 8, struct.pack("=i8x", DEVICE))
INFO6 = (41, 50, struct.pack("=16xi", DEVICE))
WAYS = {
    "device, IPv4": lambda: datagram(V4, [DEVICE_NAME]),
    "device, IPv6": lambda: datagram(V6, [DEVICE_NAME]),
    "index, IPv4": lambda: datagram(V4, [DEVICE_INDEX]),
    "index, IPv6": lambda: datagram(V6, [DEVICE_INDEX]),
    "device, other port": lambda: datagram(V4, [DEVICE_NAME], port=4444),
    "device, broadcast": lambda: datagram(V4, [DEVICE_NAME, BROADCAST], to=("255.255.255.255", 53)),
    "broadcast": lambda: datagram(V4, [BROADCAST], to=("10.9.0.255", 53)),
    "device, multicast": lambda: datagram(V4, [DEVICE_NAME], to=("224.0.0.251", 53)),
    "multicast_if": lambda: datagram(V4, [(0, 32, struct.pack("=8xi", DEVICE))], to=("224.0.0.251", 53)),
    "multicast_if, IPv6": lambda: datagram(V6, [(41, 17, DEVICE)], to=("ff02::fb", 53)),
    "unicast_if": lambda: datagram(V4, [(0, 50, struct.pack("!I", DEVICE))]),
    "unicast_if, IPv6": lambda: datagram(V6, [(41, 76, struct.pack("!I", DEVICE))]),
    "pktinfo": lambda: datagram(V4, ancillary=[INFO4]),
    "pktinfo, IPv6": lambda: datagram(V6, ancillary=[INFO6]),
    "pktinfo, sticky": lambda: datagram(V6, [INFO6]),
    "link-local": lambda: datagram(V6, to=neighbour(53)),
    "SYN, device": lambda: connect(V4, [DEVICE_NAME]),
    "SYN, device, IPv6": lambda: connect(V6, [DEVICE_NAME]),
    "SYN, index": lambda: connect(V4, [DEVICE_INDEX]),
    "SYN, link-local": lambda: connect(V6, to=neighbour(4444)),
    "SYN, record route": lambda: connect(V4, [DEVICE_NAME, (0, 4, b"\\x07\\x07\\x04\\0\\0\\0\\0\\0")]),
}
for name in sys.argv[1:] or WAYS:
    try:
        WAYS[name]()
        print(name, "went", sep=": ")
    except OSError as error:
        print(name, type(error).__name__, sep=": ")
"""
NAMES = [line.split('"')[1] for line in WAYS.splitlines() if line.startswith('    "')]


@pytest.fixture
def networks() -> Iterator[Networks]:
    made = Networks()
    made.world.run("ip", "addr", "add", "fe80::2/64", "dev", "far", "nodad")
    yield made
    made.close()


def as_uid(uid: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


def what_left(networks: Networks) -> list[bytes]:
    """Packets since the last time. A mark of our own is behind all of them, so none can still be under way."""
    networks.machine.run(*python(f"import socket; socket.socket(2, 2).sendto({MARK!r}, ('10.9.0.1', 4445))"))
    found: list[bytes] = []

    def is_marked() -> bool:
        found.extend(networks.witness.packets())
        return any(MARK in packet for packet in found)

    wait_until(is_marked, "the mark")
    return [packet for packet in found if MARK not in packet]


@pytest.mark.parametrize("way", NAMES)
def test_a_way_out_by_a_device_is_one_for_another_user(networks: Networks, way: str) -> None:
    networks.machine.run(*as_uid(OTHER), *python(WAYS, way))
    assert what_left(networks) != []


def test_rules_and_routes_alone_hold_every_way(networks: Networks) -> None:
    held = networks.machine.make(fence.raise_fence)
    sockets = networks.machine.make(lambda: fence.open_fenced_sockets(held))
    try:
        for way in NAMES:
            networks.machine.run(*as_uid(held.uid), *python(WAYS, way))
            assert what_left(networks) == [], way
    finally:
        sockets.close()
        held.remove()


def test_a_command_in_the_jail_has_no_way(networks: Networks) -> None:
    done = exeat("--jail", "nft", "--quiet", command=python(WAYS), before=networks.machine.before, cwd=ANYWHERE)
    assert (done.status, done.stderr) == (0, "")
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(said) == NAMES
    assert what_left(networks) == []
    for way, came in said.items():
        if any(word in way for word in ("device", "index", "_if", "sticky", "record route")):
            assert came == "PermissionError", way


# What the outside can read without anything being sent to it


def unreachables(networks: Networks, family: socket.AddressFamily) -> list[bytes]:
    """What the machine answers to a datagram for a port that no socket has."""

    def ask() -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.sendto(PROBE, ("10.9.0.2" if family == socket.AF_INET else "fd09::2", 4446))

    networks.world.make(ask)
    return [packet for packet in what_left(networks) if PROBE in packet]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_whether_a_port_is_taken_cannot_be_asked_from_outside(networks: Networks, family: socket.AddressFamily) -> None:
    """Taking a port and giving it back would be a signal that the outside can read."""
    assert unreachables(networks, family) != []
    held = networks.machine.make(fence.raise_fence)
    sockets = networks.machine.make(lambda: fence.open_fenced_sockets(held))
    try:
        assert unreachables(networks, family) == []
    finally:
        sockets.close()
        held.remove()
    assert unreachables(networks, family) != []


def test_a_socket_has_no_address_that_is_known_outside(networks: Networks) -> None:
    """A stray segment to a connection is not answered as one to no connection is: again a signal."""
    program = (
        "import socket, sys\n"
        "for family, kind, own in ((2, 1, '10.9.0.2'), (10, 1, 'fd09::2'), (2, 2, '10.9.0.2')):\n"
        "    with socket.socket(family, kind) as s:\n"
        "        s.bind((own, 7777))\n"
        "        print(s.getsockname()[1], end=' ')\n"
        "        s.connect(('10.9.0.1' if family == 2 else 'fd09::1', 4444))\n"
        "        print(s.getsockname()[0])\n"
    )
    done = exeat("--jail", "nft", "--quiet", command=python(program), before=networks.machine.before, cwd=ANYWHERE)
    assert done.stdout.splitlines() == ["0 127.0.0.1", "0 ::1", "0 127.0.0.1"], done.stderr
    told = exeat(
        "--jail", "nft", "--quiet",
        command=python(
            "import socket\n"
            "try:\n"
            "    socket.socket(socket.AF_UNIX).bind('\\0a name that is long enough')\n"
            "except OSError as error:\n"
            "    print(type(error).__name__)\n"
            "print(socket.if_nameindex()[0][1], len(socket.getaddrinfo('localhost', 80)) > 0)"
        ),
        before=networks.machine.before,
        cwd=ANYWHERE,
    )  # fmt: skip
    assert told.stdout == "PermissionError\nlo True\n", told.stderr
