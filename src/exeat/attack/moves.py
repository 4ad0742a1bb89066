"""The few moves that many probes make: say a token by TCP, UDP, proxy or SOCKS, and call the kernel directly."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import struct
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

from exeat.attack.model import Absent, Place, Scene, Stopped

WAIT_S = 3.0  # how long a probe waits for a peer before it gives up
_LIMIT = 65536
_LONGEST_PATH = 100  # of a Unix socket, a little less than the kernel takes

# The same number on x86-64, ARM64 and RISC-V: they are newer than the common table.
SYS_PIDFD_SEND_SIGNAL = 424
SYS_IO_URING_SETUP = 425
SYS_IO_URING_ENTER = 426
SYS_OPEN_TREE = 428
SYS_FSOPEN = 430
SYS_PIDFD_OPEN = 434
SYS_CLONE3 = 435
SYS_PIDFD_GETFD = 438

_X86 = {
    "add_key": 248,
    "keyctl": 250,
    "bpf": 321,
    "userfaultfd": 323,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "perf_event_open": 298,
}
_GENERIC = {
    "add_key": 217,
    "keyctl": 219,
    "bpf": 280,
    "userfaultfd": 282,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "perf_event_open": 241,
}


def number_of(name: str) -> int:
    """A system call's number on this machine."""
    machine = platform.machine()
    if machine in {"x86_64", "AMD64"}:
        return _X86[name]
    if machine in {"aarch64", "riscv64"}:
        return _GENERIC[name]
    raise Absent(f"system call numbers of {machine} are not known here")


def syscall(number: int, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by number; OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(libc.syscall(ctypes.c_long(number), *words))


def libc_call(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A function of the C library that returns -1 on error; OSError if it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, name)
    function.restype = ctypes.c_long
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(function(*words))


def _checked(result: int) -> int:
    # The C library returns an int where we read a long: -1 may come with its upper half cleared.
    if result in {-1, 0xFFFFFFFF}:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def request_for(scene: Scene, place: Place, host: str = "") -> bytes:
    """A request that carries the token, and that a gateway can read as HTTP."""
    named = host or (f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}")
    return f"GET /{scene.token} HTTP/1.1\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode()


def ask(sock: socket.socket, payload: bytes) -> str:
    """Send on a connected stream, and read the first bytes of the answer: a peer may read late."""
    sock.settimeout(WAIT_S)
    sock.sendall(payload)
    answer = sock.recv(_LIMIT)
    return f"sent {len(payload)} bytes; answer {answer[:40]!r}"


def say_tcp(scene: Scene, place: Place, *, host: str = "", options: tuple[tuple[int, int, bytes], ...] = ()) -> str:
    """Connect by TCP and say the token in a request."""
    with socket.socket(family_of(place[0]), socket.SOCK_STREAM) as sock:
        for level, option, value in options:
            sock.setsockopt(level, option, value)
        sock.settimeout(WAIT_S)
        sock.connect(place)
        return ask(sock, request_for(scene, place, host))


def say_udp(scene: Scene, place: Place, *, prefix: bytes = b"", protocol: int = 0) -> str:
    """Send the token as one datagram."""
    with socket.socket(family_of(place[0]), socket.SOCK_DGRAM, protocol) as sock:
        sock.sendto(prefix + scene.token.encode(), place)
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


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that the program was told to use, with the credentials that came with it."""

    place: Place
    user: str = ""
    password: str = ""

    @property
    def authority(self) -> str:
        host, port = self.place
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

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


@contextlib.contextmanager
def at_proxy(scene: Scene) -> Iterator[socket.socket]:
    """A connection to the proxy."""
    place = proxy_of(scene).place
    with socket.socket(family_of(place[0]), socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(place)
        yield sock


def say_absolute(scene: Scene, authority: str, host: str = "") -> str:
    """Ask the proxy for a URL that carries the token."""
    head = f"GET http://{authority}/{scene.token} HTTP/1.1\r\nHost: {host or authority}\r\n"
    with at_proxy(scene) as sock:
        return ask(sock, f"{head}{proxy_of(scene).header}\r\n".encode())


def connect_through(sock: socket.socket, authority: str, header: str = "") -> None:
    """CONNECT on an open connection; Stopped unless the answer is 200."""
    sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{header}\r\n".encode())
    answer = sock.recv(_LIMIT)
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise Stopped(f"answer {answer[:60]!r}")


def say_connect(scene: Scene, authority: str) -> str:
    """CONNECT to an authority, then say the token inside the tunnel."""
    with at_proxy(scene) as sock:
        connect_through(sock, authority, proxy_of(scene).header)
        return ask(sock, f"GET /{scene.token} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())


def say_socks(scene: Scene, address: bytes, port: int) -> str:
    """SOCKS5 to an address in wire form (type byte first), then say the token."""
    proxy = proxy_of(scene)
    with at_proxy(scene) as sock:
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
