"""Everything outside that a jailed program could want to reach, opened for the time of an attack.

A target that this machine or this user cannot have is left out, and the probes that need it say so. All of them are on
loopback or on addresses of this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exeat.attack.model import Place, Scene
from exeat.attack.moves import family_of, socket_address
from exeat.attack.outside import addresses
from exeat.attack.outside.belongings import OPEN, Belongings
from exeat.attack.outside.kernel_objects import file_handle, keep_key
from exeat.attack.outside.open_proxy import OpenProxy
from exeat.attack.outside.sinks import Sinks, nothing_there
from exeat.attack.outside.unix_sockets import bind_unix, open_abstract, open_late, open_paths
from exeat.attack.outside.victim import open_victim

ALLOWED = "allowed.test"
LOW = "127.66.0.1"  # loopback, but where nothing else listens on well-known ports
RESOLVER = "127.66.0.53"
METADATA = "169.254.169.254"
_LOW_TCP = {"ssh": 22, "smtp": 25, "http": 80, "https": 443, "dot": 853}
_LOW_UDP = {"ntp": 123, "quic": 443, "mdns": 5353}
_OTHER = {
    "sctp": (socket.SOCK_STREAM, 132),
    "udplite": (socket.SOCK_DGRAM, 136),
    "dccp": (6, 33),
}
_VSOCK_LOCAL = 1


@dataclass(frozen=True, slots=True)
class Targets:
    """What is open, and what a probe is told of it."""

    sinks: Sinks
    scene: Scene
    secrets: frozenset[str]
    held: tuple[int, ...]  # descriptors that a careless caller leaves open for the command
    input: str  # a file for its standard input
    belongings: Belongings

    def reached(self, mark: str) -> list[str]:
        """The targets that a mark got to, those aside that it may reach."""
        return [*(name for name in self.sinks.where(mark) if name != "allowed"), *self.belongings.where(mark)]


@contextlib.contextmanager
def open_targets(python: str, *, shared: bool = False) -> Iterator[Targets]:
    """Open all targets; close them, and remove every file of theirs, at the end.

    `shared` opens the scratch folder to every user, for a jail that runs the probe as another one: rights on files are
    not what is tested.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="exeat-attack-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o777 if shared else 0o700)
        sinks = Sinks()
        stack.callback(sinks.close)
        tcp, udp, other = _internet(sinks)
        paths = open_paths(sinks, folder, stack)
        datagram = folder / "datagram.sock"
        sinks.receive("unix datagram", bind_unix(str(datagram), socket.SOCK_DGRAM))
        allowed = _bind(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        sinks.listen("allowed", allowed)
        proxy = OpenProxy({ALLOWED: "127.0.0.1"})
        stack.callback(proxy.close)
        key_name, key_secret = stack.enter_context(keep_key())
        belongings = Belongings(folder, stack, shared=shared)
        open_late(sinks, "later", folder, belongings.project / OPEN)
        sinks.start()
        victim = stack.enter_context(open_victim(python, tcp["v4"]))
        sinks.watch("victim", victim.voice)
        scene = Scene(
            python=python,
            folder=str(folder),
            handle=file_handle(folder.parent),
            allowed=(ALLOWED, allowed.getsockname()[1]),
            allowed_address="127.0.0.1",
            proxy=proxy.place,
            tcp=tcp,
            udp=udp,
            other=other,
            paths=paths,
            datagram_path=str(datagram),
            abstract=open_abstract(sinks),
            vsock_port=_vsock(sinks),
            icmp=_icmp(sinks),
            victim=victim.facts,
            key_name=key_name,
            namespaces={kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid")},
            home=str(belongings.home),
            files=belongings.scene(),
            resolver_is_ours=_resolver_is_ours(udp),
        )
        own = folder / "opened"
        own.touch(0o666 if shared else 0o600)
        held = _held(stack, tcp["v4"], paths["tmp"], str(own))
        secrets = victim.secrets | {key_secret, belongings.secret}
        yield Targets(sinks, scene, secrets, held, str(own), belongings)


def _internet(sinks: Sinks) -> tuple[dict[str, Place], dict[str, Place], dict[str, Place]]:
    """TCP, UDP and other transports, on every kind of address that this machine has."""
    tcp: dict[str, Place] = {}
    udp: dict[str, Place] = {}
    other: dict[str, Place] = {}
    hosts = {"v4": "127.0.0.1", "v6": "::1", "net127": LOW, "admin": "127.0.0.1", **addresses.pick()}
    for key, host in hosts.items():
        _try_tcp(sinks, tcp, key, (host, 0))
        _try_udp(sinks, udp, key, (host, 0))
    for key, port in _LOW_TCP.items():
        _try_tcp(sinks, tcp, key, (LOW, port))
    for key, port in _LOW_UDP.items():
        _try_udp(sinks, udp, key, (LOW, port))
    _try_tcp(sinks, tcp, "dns", (RESOLVER, 53))
    _try_udp(sinks, udp, "dns", (RESOLVER, 53))
    _try_udp(sinks, udp, "dns6", ("::1", 53))
    _try_tcp(sinks, tcp, "metadata", (METADATA, 80))
    _try_udp(sinks, udp, "broadcast", ("127.255.255.255", 0))
    _try_multicast(sinks, udp)
    for key, (kind, protocol) in _OTHER.items():
        with contextlib.suppress(OSError):
            sock = _bind(socket.AF_INET, kind, ("127.0.0.1", 0), protocol)
            (sinks.receive if kind == socket.SOCK_DGRAM else sinks.listen)(key, sock)
            other[key] = sock.getsockname()[:2]
    return tcp, udp, other


def _bind(family: int, kind: int, place: Place, protocol: int = 0) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.bind(socket_address(place))
    except OSError:
        sock.close()
        raise
    return sock


def _try_tcp(sinks: Sinks, table: dict[str, Place], key: str, place: Place) -> None:
    with contextlib.suppress(OSError):
        sock = _bind(family_of(place[0]), socket.SOCK_STREAM, place)
        sinks.listen(f"tcp {key}", sock)
        table[key] = (place[0], sock.getsockname()[1])


def _try_udp(sinks: Sinks, table: dict[str, Place], key: str, place: Place) -> None:
    with contextlib.suppress(OSError):
        sock = _bind(family_of(place[0]), socket.SOCK_DGRAM, place)
        sinks.receive(f"udp {key}", sock, answer=nothing_there if key in {"dns", "dns6"} else None)
        table[key] = (place[0], sock.getsockname()[1])


def _try_multicast(sinks: Sinks, table: dict[str, Place]) -> None:
    """Groups that never leave the machine: one on lo, and one of scope 1 (RFC 4291, 2.7) on any interface."""
    with contextlib.suppress(OSError):
        sock = _bind(socket.AF_INET, socket.SOCK_DGRAM, ("239.66.0.1", 0))
        sinks.receive("udp multicast4", sock)
        member = socket.inet_aton("239.66.0.1") + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        table["multicast4"] = sock.getsockname()[:2]
    for _, interface in addresses.own_ipv6()[:1]:
        with contextlib.suppress(OSError):
            sock = _bind(socket.AF_INET6, socket.SOCK_DGRAM, (f"ff01::66%{interface}", 0))
            sinks.receive("udp multicast6", sock)
            member = socket.inet_pton(socket.AF_INET6, "ff01::66") + struct.pack("@I", socket.if_nametoindex(interface))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
            table["multicast6"] = (f"ff01::66%{interface}", sock.getsockname()[1])


def _vsock(sinks: Sinks) -> int:
    """A listener on vsock's own loopback; never the hypervisor."""
    try:
        sock = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except (OSError, AttributeError):
        return 0
    try:
        sock.bind((_VSOCK_LOCAL, 0xFFFFFFFF))
        sinks.listen("vsock", sock)
        return int(sock.getsockname()[1])
    except OSError:
        sock.close()
        return 0


def _icmp(sinks: Sinks) -> bool:
    """An ear for ICMP, where this user may have one."""
    with contextlib.suppress(OSError):
        sinks.receive("icmp", _bind(socket.AF_INET, socket.SOCK_RAW, ("127.0.0.1", 0), socket.IPPROTO_ICMP))
        return True
    return False


def _resolver_is_ours(udp: dict[str, Place]) -> bool:
    """Whether a look-up by the system would stay here."""
    try:
        lines = Path("/etc/resolv.conf").read_text().splitlines()
    except OSError:
        return False
    servers = [line.split()[1] for line in lines if line.startswith("nameserver") and len(line.split()) > 1]
    return servers == [RESOLVER] and udp.get("dns") == (RESOLVER, 53)


def _held(stack: contextlib.ExitStack, place: Place, path: str, file: str) -> tuple[int, ...]:
    """Descriptors that a careless caller leaves open: connected sockets, a bound one, the root directory, a file."""
    stream = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    stream.connect(place)
    unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    unix.connect(path)
    fresh = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, root)
    opened = os.open(file, os.O_RDONLY)
    stack.callback(os.close, opened)
    return stream.fileno(), unix.fileno(), fresh.fileno(), root, opened
