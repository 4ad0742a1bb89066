"""Two network namespaces joined by a cable: a machine to run exeat on, and the world that it reaches.

Every address that the machine does not have itself leads to the world, where a server answers and a witness sees all
packets. The test process makes sockets in either; the real machine's network is never touched.
"""

from __future__ import annotations

import ctypes
import ipaddress
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support.programs import give_up

Made = TypeVar("Made")
_CLONE_NEWNET = 0x40000000
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_ETH_P_ALL = 3
# Interface set-up, not anybody's traffic: ARP, and ICMPv6's neighbour, router and multicast messages.
_ARP, _IPV6 = 0x0806, 0x86DD
_HOUSEKEEPING = range(130, 144)
PORT = 8080


class Network:
    """One namespace. It lives as long as its descriptor, and what was made in it."""

    def __init__(self) -> None:
        self._descriptor = _in_thread(_new_namespace)

    @property
    def before(self) -> list[str]:
        """What to put before a command so that it runs here."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._descriptor}"]

    def make(self, maker: Callable[[], Made]) -> Made:
        """Call this in the namespace: a socket belongs to where it was made."""

        def enter() -> Made:
            _libc("setns", self._descriptor, _CLONE_NEWNET)
            return maker()

        return _in_thread(enter)

    def run(self, *argv: str, text: str = "") -> str:
        done = subprocess.run(
            [*self.before, *argv],
            input=text,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=os.environ | {"PATH": _PATH},
        )
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout

    def tables(self) -> list[str]:
        """Names of the tables of packet rules."""
        return [line.split()[2] for line in self.run("nft", "list", "tables").splitlines()]

    def close(self) -> None:
        os.close(self._descriptor)


class Networks:
    """The two, with a cable between, addresses and routes."""

    def __init__(self) -> None:
        for program in ("ip", "nft", "nsenter"):
            if shutil.which(program, path=_PATH) is None:
                give_up(f"{program} is not installed")
        self.machine = Network()
        self.world = Network()
        for network in (self.machine, self.world):
            network.run("ip", "link", "set", "lo", "up")
        machine, world = self.machine.run, self.world.run
        machine("ip", "link", "add", "cable", "type", "veth", "peer", "name", "far")
        machine("ip", "link", "set", "far", "netns", self.world.before[1].removeprefix("--net="))
        for run, name, last in ((machine, "cable", 2), (world, "far", 1)):
            run("ip", "addr", "add", f"10.9.0.{last}/24", "dev", name)
            run("ip", "addr", "add", f"fd09::{last}/64", "dev", name, "nodad")
            run("ip", "link", "set", name, "up")
        machine("ip", "route", "add", "default", "via", "10.9.0.1")
        machine("ip", "-6", "route", "add", "default", "via", "fd09::1")
        # In the main table: the local one would come before the route back to the machine.
        world("ip", "route", "add", "local", "default", "dev", "lo", "table", "main")
        world("ip", "-6", "route", "add", "local", "default", "dev", "lo", "table", "main")
        self.witness = Witness(self.world)

    def close(self) -> None:
        self.witness.close()
        self.machine.close()
        self.world.close()


class Witness:
    """Sees what comes out of the machine."""

    def __init__(self, world: Network) -> None:
        def listen() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            made.bind(("far", _ETH_P_ALL))
            return made

        self._socket = world.make(listen)
        self._socket.setblocking(False)

    def packets(self, about: str = "") -> list[bytes]:
        """What has come since the last time, without link housekeeping and what the world itself sent.

        `about` an address only, where other connections of the test may still be ending.
        """
        return [packet for packet in self._all() if not about or _is_about(packet, about)]

    def _all(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            try:
                data, where = self._socket.recvfrom(65536)
            except BlockingIOError:
                return found
            if where[2] != socket.PACKET_OUTGOING and not _is_housekeeping(data):
                found.append(data[14:])

    def close(self) -> None:
        self._socket.close()


def _is_about(packet: bytes, address: str) -> bool:
    """Does it come from this address, or go there?"""
    mapped = address.removeprefix("::ffff:")
    wanted = socket.inet_pton(socket.AF_INET6 if ":" in mapped else socket.AF_INET, mapped)
    ends = packet[8:24], packet[24:40]
    if packet[0] >> 4 == 4:
        ends = packet[12:16], packet[16:20]
    return wanted in ends


def _is_housekeeping(frame: bytes) -> bool:
    kind = int.from_bytes(frame[12:14])
    if kind == _ARP:
        return True
    if kind != _IPV6:
        return False
    following, at = frame[20], 54
    if following == 0:  # hop-by-hop options, which multicast reports have
        following, at = frame[54], 54 + 8 * (frame[55] + 1)
    return following == socket.IPPROTO_ICMPV6 and frame[at] in _HOUSEKEEPING


class Greeter:
    """A TCP server of a network that says a word to everybody, on every address."""

    def __init__(
        self, network: Network, port: int, word: str, *, host: str = "::", listener: socket.socket | None = None
    ) -> None:
        def listen() -> socket.socket:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")

        self._listener = listener or network.make(listen)
        self.port = self._listener.getsockname()[1]
        self._word = word.encode()
        self.came: list[str] = []  # whom each connection was for
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return  # shut down
            with conn:
                self.came.append(conn.getsockname()[0].removeprefix("::ffff:"))
                conn.sendall(self._word)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which wakes it
        self._thread.join()
        self._listener.close()


def _libc(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def _new_namespace() -> int:
    _libc("unshare", _CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _in_thread(work: Callable[[], Made]) -> Made:
    """In a thread of its own, which may change its namespace and takes that with it."""
    done: list[Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def own_addresses() -> list[str]:
    """Those of all interfaces. One that is good on one link only is left out: it needs the link's name."""
    return sorted({*_ipv4(), *_ipv6()})


def _ipv4() -> list[str]:
    """From lines `|-- 10.0.0.5` which are followed by `/32 host LOCAL`."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    local = [line.split()[-1] for line, after in itertools.pairwise(lines) if "/32 host LOCAL" in after]
    return [address for address in local if not address.startswith("127.")]


def _ipv6() -> list[str]:
    """From lines of address, index, prefix length, scope (0: everywhere), flags, name."""
    table = Path("/proc/net/if_inet6")
    fields = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [str(ipaddress.IPv6Address(bytes.fromhex(address))) for address, _, _, scope, *_ in fields if scope == "00"]
