"""Moves that many probes share: send a token by TCP, UDP, proxy or SOCKS, and make rare system calls."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import struct
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from exeat.attack.model import Absent, Place, Scene, Stopped
from exeat.jail import libc
from exeat.jail.files.mounttable import unescaped

WAIT_S = 3.0  # how long a probe waits for a peer before it gives up
_LIMIT = 65536
_LONGEST_PATH = 100  # of a Unix socket, a little less than the kernel takes

# The newer ones have the same number on x86-64, ARM64 and RISC-V.
_SYSTEM_CALLS = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "clone3": 435,
    "pidfd_getfd": 438,
}
_OLDER = {  # on x86-64, and on ARM64 and RISC-V
    "add_key": (248, 217),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "pivot_root": (155, 41),
    "socket": (41, 198),
    "userfaultfd": (323, 282),
}
_MACHINES = {"x86_64": 0, "AMD64": 0, "aarch64": 1, "riscv64": 1}


def syscall(name: str, *args: object) -> int:
    """A system call by name; OSError if it fails, Absent where its number is not known."""
    number = _SYSTEM_CALLS.get(name)
    if number is None:
        machine = platform.machine()
        if machine not in _MACHINES:
            raise Absent(f"system call numbers of {machine} are not known here")
        number = _OLDER[name][_MACHINES[machine]]
    return libc.syscall(number, *args)


def become_root_inside(namespaces: int) -> None:
    """Be root in a new user namespace, with more new ones as the flags say."""
    uid, gid = os.getuid(), os.getgid()
    libc.unshare(libc.CLONE_NEWUSER | namespaces)
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    number: str
    parent: str
    device: str
    root: str  # the part of the file system that is mounted
    point: str
    options: str
    kind: str


def mounts() -> list[Mount]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        number, parent, device, root, point, options, *rest = line.split(" ")
        kind = rest[rest.index("-") + 1]
        found.append(Mount(number, parent, device, unescaped(root), unescaped(point), options, kind))
    return found


def left_open(is_wanted: Callable[[int], bool]) -> Iterator[int]:
    """Descriptors that a careless caller left open, of one kind: a test of the mode, such as `stat.S_ISDIR`."""
    for descriptor in range(3, 256):
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            continue
        if is_wanted(mode):
            yield descriptor


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def socket_address(place: Place) -> tuple[str, int] | tuple[str, int, int, int]:
    """As the kernel wants it: with the number of the interface, where the address names one (%)."""
    host, _, zone = place[0].partition("%")
    return (host, place[1], 0, socket.if_nametoindex(zone)) if zone else place


def authority_of(place: Place) -> str:
    """As it stands in a request."""
    host = place[0].partition("%")[0]
    return f"[{host}]:{place[1]}" if ":" in host else f"{host}:{place[1]}"


def request_for(scene: Scene, place: Place, host: str = "") -> bytes:
    """A request that carries the token, and that a gateway can read as HTTP."""
    return f"GET /{scene.token} HTTP/1.1\r\nHost: {host or authority_of(place)}\r\nConnection: close\r\n\r\n".encode()


def ask(sock: socket.socket, payload: bytes) -> str:
    """Send on a connected stream, and read the first bytes of the answer: a peer may read late."""
    sock.settimeout(WAIT_S)
    sock.sendall(payload)
    answer = sock.recv(_LIMIT)
    return f"sent {len(payload)} bytes; answer {answer[:40]!r}"


Options = tuple[tuple[int, int, int | bytes], ...]  # level, option, value


@contextlib.contextmanager
def connected(
    place: Place, *, family: int | None = None, kind: int = socket.SOCK_STREAM, protocol: int = 0, options: Options = ()
) -> Iterator[socket.socket]:
    """A stream to a place."""
    with socket.socket(family or family_of(place[0]), kind, protocol) as sock:
        for option in options:
            sock.setsockopt(*option)
        sock.settimeout(WAIT_S)
        sock.connect(socket_address(place))
        yield sock


def say_tcp(scene: Scene, place: Place, *, host: str = "", options: Options = ()) -> str:
    """Connect by TCP and say the token in a request."""
    with connected(place, options=options) as sock:
        return ask(sock, request_for(scene, place, host))


def say_udp(
    scene: Scene,
    place: Place,
    *,
    prefix: bytes = b"",
    suffix: bytes = b"",
    protocol: int = 0,
    options: Options = (),
    source: Place | None = None,
) -> str:
    """Send the token as one datagram."""
    with socket.socket(family_of(place[0]), socket.SOCK_DGRAM, protocol) as sock:
        for option in options:
            sock.setsockopt(*option)
        if source is not None:
            sock.bind(source)
        sock.sendto(prefix + scene.token.encode() + suffix, socket_address(place))
    return f"sent to {place[0]} port {place[1]}"


def say_unix(scene: Scene, name: str | bytes, kind: int = socket.SOCK_STREAM) -> str:
    """Connect to a Unix socket by path or abstract name, and say the token."""
    if isinstance(name, str) and len(name) > _LONGEST_PATH:
        folder, _, name = name.rpartition("/")
        os.chdir(folder)
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(name)
        return ask(sock, scene.token.encode())


def say_unix_datagram(scene: Scene, name: str | bytes) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(scene.token.encode(), name)
    return "sent"


def say_after_rename(scene: Scene, old: str, new: Path) -> str:
    """Rename a Unix socket, speak to it, and put it back for the probes that follow."""
    Path(old).rename(new)
    try:
        return say_unix(scene, str(new))
    finally:
        new.rename(old)


def say_late(scene: Scene, wishes: Path, folder: Path, name: str) -> str:
    """Ask for a Unix socket by making a file, wait until it is bound, and speak to it."""
    run = "control" if scene.outside else "jailed"
    (wishes / f"want-{name}-{run}").touch()
    path = folder / f"{name}-{run}.sock"
    end = time.monotonic() + WAIT_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.05)  # between bind() and listen()
    return say_unix(scene, str(path))


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that the program was told to use, with the credentials that came with it."""

    place: Place
    user: str = ""
    password: str = ""

    @property
    def header(self) -> str:
        """The line that a client adds to each request."""
        if not self.user:
            return ""
        return f"Proxy-Authorization: Basic {b64encode(f'{self.user}:{self.password}'.encode()).decode()}\r\n"


def proxy_of(scene: Scene) -> Proxy:
    """The proxy of the variables. In the control run it is an open one.

    A jail that sets no variables takes every connection to its gateway, so any port will do.
    """
    if scene.proxy is not None:
        return Proxy(scene.proxy)
    parts = urllib.parse.urlsplit(os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY") or "")
    place = (parts.hostname, parts.port) if parts.hostname and parts.port else ("127.0.0.1", 9)
    return Proxy(place, urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.password or ""))


def say_in_every_language(scene: Scene, places: Iterable[Place]) -> list[str]:
    """Ask the listeners at these for a forbidden place: their answers."""
    target = scene.tcp["v4"]
    said = []
    for place in places:
        for attempt in (
            lambda sock: connect_through(sock, authority_of(target)),
            lambda sock: sock.sendall(b""),
            lambda sock: ask(sock, b"\x05\x01\x00"),
        ):
            with contextlib.suppress(OSError, Stopped), connected(place) as sock:
                attempt(sock)
                said.append(ask(sock, request_for(scene, target)))
    return said


def say_absolute(scene: Scene, authority: str, host: str = "") -> str:
    """Ask the proxy for a URL that carries the token."""
    head = f"GET http://{authority}/{scene.token} HTTP/1.1\r\nHost: {host or authority}\r\n"
    with connected(proxy_of(scene).place) as sock:
        return ask(sock, f"{head}{proxy_of(scene).header}\r\n".encode())


def connect_through(sock: socket.socket, authority: str, header: str = "") -> None:
    """CONNECT on an open connection; Stopped unless the answer is 200."""
    sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{header}\r\n".encode())
    answer = sock.recv(_LIMIT)
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise Stopped(f"answer {answer[:60]!r}")


def say_connect(scene: Scene, authority: str) -> str:
    """CONNECT to an authority, then say the token inside the tunnel."""
    with connected(proxy_of(scene).place) as sock:
        connect_through(sock, authority, proxy_of(scene).header)
        return ask(sock, f"GET /{scene.token} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())


def say_socks(scene: Scene, address: bytes, port: int) -> str:
    """SOCKS5 to an address in wire form (type byte first), then say the token."""
    proxy = proxy_of(scene)
    with connected(proxy_of(scene).place) as sock:
        method = 2 if proxy.user else 0
        sock.sendall(bytes([5, 1, method]))
        if sock.recv(2) != bytes([5, method]):
            raise Stopped("SOCKS5 is not spoken")
        if proxy.user:
            user, password = proxy.user.encode(), proxy.password.encode()
            sock.sendall(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
            if sock.recv(2) != b"\x01\x00":
                raise Stopped("SOCKS5 does not know the credentials")
        sock.sendall(b"\x05\x01\x00" + address + struct.pack("!H", port))
        answer = sock.recv(_LIMIT)
        if answer[:2] != b"\x05\x00":
            raise Stopped(f"SOCKS5 answer {answer[:4]!r}")
        return ask(sock, f"GET /{scene.token} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def dns_query(name: str, kind: int) -> bytes:
    """A DNS question in wire form."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 0x2A2A, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
