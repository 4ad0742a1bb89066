"""Network namespaces whose every TCP connection is redirected, for tests of the door that serves those.

A child process makes the namespace and then only makes sockets, on request, which it hands out over a Unix
socket. A socket belongs to the namespace that it was made in, so the test and its gateway, outside, use them like
any others. This file is also the child's program; it runs `ip` and `nft`, and needs nothing beyond Python.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PORT = 15001
_TIMEOUT_S = 60
# Loopback is the sandbox's own. Everything else is redirected, DNS first. What is not redirected does not leave.
_RULES = f"""
table inet redirected {{
  chain nat {{
    type nat hook output priority -100;
    ip daddr 127.0.0.0/8 accept
    ip6 daddr ::1 accept
    meta l4proto {{ tcp, udp }} th dport 53 redirect to :53
    meta l4proto tcp redirect to :{PORT}
  }}
  chain filter {{
    type filter hook output priority 0; policy drop;
    ct state established,related accept
    ct status dnat accept
    ip daddr 127.0.0.0/8 accept
    ip6 daddr ::1 accept
  }}
}}
"""
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # nft is there, and not in an ordinary user's path
_COMMANDS = ("ip link set lo up", "ip route add local default dev lo", "ip -6 route add local default dev lo")


@dataclass(frozen=True)
class Listeners:
    """Bound sockets of a namespace, one of each family: what a jail hands to a gateway."""

    tcp: tuple[socket.socket, ...]
    dns_udp: tuple[socket.socket, ...]
    dns_tcp: tuple[socket.socket, ...]


class Namespace:
    """A namespace to take listeners from, one set at a time, and sockets to be used as a client in it."""

    def __init__(self) -> None:
        unshare = shutil.which("unshare")
        assert unshare is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_TIMEOUT_S)
        self._control = ours
        self._lock = threading.Lock()
        with theirs:
            self._child = subprocess.Popen(
                [unshare, "-Urn", sys.executable, "-I", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PATH": _PATH},
            )
        try:
            assert self._ask("hello") == ()
        except BaseException:
            self.close()
            raise

    def _ask(self, what: str, **values: int | str) -> tuple[int, ...]:
        with self._lock:
            self._control.send(json.dumps({"what": what, **values}).encode())
            answer, descriptors, _, _ = socket.recv_fds(self._control, 4096, 8, socket.MSG_CMSG_CLOEXEC)
        if answer != b"ok":
            raise OSError(f"the namespace answered {answer.decode() or 'nothing'}")
        return tuple(descriptors)

    def listen(self) -> Listeners:
        found = [socket.socket(fileno=descriptor) for descriptor in self._ask("listen")]
        return Listeners((found[0], found[1]), (found[2], found[3]), (found[4], found[5]))

    def make_socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A fresh socket of the namespace."""
        (descriptor,) = self._ask("socket", family=family, kind=kind)
        made = socket.socket(fileno=descriptor)
        made.settimeout(_TIMEOUT_S)
        return made

    def connect(self, host: str, port: int) -> socket.socket:
        """A TCP connection from inside to an address, which the redirection takes elsewhere."""
        made = self.make_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            made.connect((host, port))
        except BaseException:
            made.close()
            raise
        return made

    def resolve(
        self, name: bytes, *, ipv6: bool = False, tcp: bool = False, server: str = "192.0.2.53"
    ) -> tuple[int, list[str]]:
        """Ask DNS for a name, label bytes as they are: the response code and the addresses."""
        query = _encode_query(name, 28 if ipv6 else 1)
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        with self.make_socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as asking:
            asking.connect((server, 53))
            if not tcp:
                asking.send(query)
                return _parse_answer(query, asking.recv(4096))
            asking.sendall(len(query).to_bytes(2) + query)
            with asking.makefile("rb") as answer:
                return _parse_answer(query, answer.read(int.from_bytes(answer.read(2))))

    def close(self) -> None:
        self._control.close()  # the child ends when no one is left to ask it
        try:
            self._child.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Namespaces:
    """Namespaces that are used again: making one takes longer than most tests. Those in use differ."""

    def __init__(self) -> None:
        self._free: list[Namespace] = []
        self._made: list[Namespace] = []

    def take(self) -> Namespace:
        if self._free:
            return self._free.pop()
        made = Namespace()
        self._made.append(made)
        return made

    def give_back(self, namespace: Namespace) -> None:
        self._free.append(namespace)

    def close(self) -> None:
        for namespace in self._made:
            namespace.close()


def _encode_query(name: bytes, kind: int) -> bytes:
    labels = name.removesuffix(b".").split(b".")
    assert all(0 < len(label) < 64 for label in labels), f"DNS cannot carry {name!r}"
    question = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + question + kind.to_bytes(2) + b"\0\1"


def _parse_answer(query: bytes, answer: bytes) -> tuple[int, list[str]]:
    """Answers here name the question by a pointer, or by the same bytes again, and have no other types."""
    assert answer[:2] == query[:2], "an answer to another question"
    found, at = [], len(query)
    for _ in range(int.from_bytes(answer[6:8])):
        at += 2 if answer[at] >= 0xC0 else len(query) - 16
        size = int.from_bytes(answer[at + 8 : at + 10])
        found.append(
            socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, answer[at + 10 : at + 10 + size])
        )
        at += 10 + size
    return answer[3] & 15, found


@functools.cache
def why_not() -> str:
    """Why such namespaces are not available here; empty if they are."""
    for program in ("unshare", "ip", "nft"):
        if shutil.which(program, path=_PATH) is None:
            return f"there is no {program} program"
    try:
        Namespace().close()
    except OSError as error:
        return f"a user and network namespace with nftables is not available: {error}"
    return ""


def require() -> None:
    """Skip the test where namespaces are not available; in CI that is a failure."""
    import pytest

    if why := why_not():
        if os.environ.get("CI"):
            pytest.fail(f"redirection cannot be tested: {why}")
        pytest.skip(f"redirection cannot be tested: {why}")


# The child


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _bind(family: int, kind: int, port: int) -> socket.socket:
    made = socket.socket(family, kind)
    if kind == socket.SOCK_STREAM:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
    return made


def _serve(request: dict[str, Any]) -> list[socket.socket]:
    match request["what"]:
        case "hello":
            return []
        case "socket":
            return [socket.socket(request["family"], request["kind"])]
        case "listen":
            wanted = ((socket.SOCK_STREAM, PORT), (socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 53))
            families = (socket.AF_INET, socket.AF_INET6)
            return [_bind(family, kind, port) for kind, port in wanted for family in families]
    raise OSError(f"no such request: {request['what']}")


def _inside(control: socket.socket) -> None:
    """Make the namespace that this process is in what it has to be, then make sockets until no one asks any more."""
    failure = ""
    try:
        for command in _COMMANDS:
            _run(command.split())
        _run(["nft", "-f", "-"], _RULES)
    except OSError as error:
        failure = str(error)
    while data := control.recv(4096):
        made: list[socket.socket] = []
        try:
            if failure:
                raise OSError(failure)
            made = _serve(json.loads(data))
            socket.send_fds(control, [b"ok"], [each.fileno() for each in made])
        except OSError as error:
            control.send(str(error).encode() or b"an error without words")
        finally:
            for each in made:
                each.close()


if __name__ == "__main__":
    _inside(socket.socket(fileno=int(sys.argv[1])))
