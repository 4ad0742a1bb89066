"""A walk through one gateway: requests by every door, over fresh and kept connections, and changes of policy.

After each step the gateway must have said what the pure functions say about that request alone. Whatever it keeps
(places, addresses, idle connections) must not show.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from exeat.policy import LOCALHOST, Name, Policy, Target, canonical_host, canonical_path, decide, judge_address
from exeat.policy.decide import host_addresses
from exeat.sources import make_policy
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.gateways.gate import Gate
from tests.support.gateways.redirected import Namespace

# Loopback only: whatever a rule lets through by mistake must end here.
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "a.w.test": ("127.0.0.1",),
    "b.w.test": ("127.0.0.2",),
    "both.w.test": ("127.0.0.1", "127.0.0.2"),
}
_ADDRESSES: Final = ("127.0.0.1", "127.0.0.2", "::1")
IP = IPv4Address | IPv6Address
_PONG: Final = b"\0pong"
KEPT_DOORS: Final = ("absolute", "connect", "socks", "redirected")
RAW_DOORS: Final = ("raw connect", "raw socks", "raw redirected")


@dataclass(frozen=True)
class Rules:
    """A policy as text. `P` and `Q` in it stand for the two ports. `hosts`: names and the address given for each."""

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()

    def policy(self, ports: Sequence[int]) -> Policy:
        allow, deny = ([_with_ports(text, ports) for text in texts] for texts in (self.allow, self.deny))
        return make_policy(allow, deny, dict(self.hosts))


def _with_ports(text: str, ports: Sequence[int]) -> str:
    where, *options = text.split(" ")
    return " ".join((where.replace("P", str(ports[0])).replace("Q", str(ports[1])), *options))


@dataclass(frozen=True)
class Request:
    """`fresh`: over a connection of its own, though one to the same place may be open."""

    door: str
    host: str
    port: int  # the first or the second
    method: str
    path: str
    fresh: bool


Step = Rules | Request


class Server:
    """Answers every request, and pings, on the addresses above and two ports. `seen`: the paths that it was asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.marks = itertools.count()
        self.verdicts: set[bool] = set()  # that were given and right
        self._listeners: list[socket.socket] = []
        self.ports = [self._listen(), self._listen()]

    def _listen(self) -> int:
        while True:
            first = socket.create_server((_ADDRESSES[0], 0))
            port: int = first.getsockname()[1]
            listeners = [first]
            try:
                for address in _ADDRESSES[1:]:
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    listeners.append(socket.create_server((address, port), family=family))
            except OSError:
                for listener in listeners:
                    listener.close()
                continue
            for listener in listeners:
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            self._listeners += listeners
            return port

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        buffer = b""
        with conn:
            while True:
                try:
                    data = conn.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                buffer += data
                if buffer[:1] == b"\0":
                    conn.sendall(_PONG)
                    buffer = b""
                while b"\r\n\r\n" in buffer:
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    self.seen.append(head.split(b" ", 2)[1].decode())
                    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        for listener in self._listeners:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()


class Walk:
    """One gateway, and the connections to it that are open."""

    def __init__(self, audit: Path, server: Server, rules: Rules, inside: Namespace | None) -> None:
        self._server = server
        self._policy = rules.policy(server.ports)
        self._gate = Gate(audit, names=NAMES, inside=inside)
        self._gate.set_policy(self._policy)
        self._open: dict[tuple[str, str, int], socket.socket] = {}
        self._made: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for conn in self._made:
            conn.close()
        self._gate.close()

    def take(self, step: Step) -> None:
        """Do it, and see that the gateway says what it must."""
        if isinstance(step, Rules):
            self._policy = step.policy(self._server.ports)
            self._gate.set_policy(self._policy)
        elif step.door in RAW_DOORS:
            self._take_raw(step)
        else:
            self._take_request(step)

    # What must be

    def expected(self, step: Request, *, tunnel: bool) -> bool:
        """May this be reached? By the pure functions, from nothing but the policy and the request."""
        host, port = canonical_host(step.host), self._server.ports[step.port]
        target = Target(host, port) if tunnel else Target(host, port, step.method, canonical_path(step.path))
        decision = decide(self._policy, target)
        ips: Sequence[IP] = ()
        if isinstance(host, Name):
            ips = self._policy.mapped(host) or (host_addresses(self._policy, port) if host == LOCALHOST else ())
        ips = ips or [ip_address(text.strip("[]")) for text in NAMES.get(str(host), (str(host),))]
        return all(judge_address(self._policy, decision, target, ip, own=False).allowed for ip in ips)

    # What is

    def _take_request(self, step: Request) -> None:
        where = (step.door, step.host, step.port)
        conn = None if step.fresh else self._open.pop(where, None)
        if conn is None:
            conn = self._reach(step)
        if conn is None:
            return
        mark = f"?{next(self._server.marks)}"
        host = f"{step.host}:{self._server.ports[step.port]}"
        url = f"http://{host}{step.path}{mark}" if step.door == "absolute" else step.path + mark
        length = "Content-Length: 0\r\n" if step.method == "POST" else ""
        conn.sendall(f"{step.method} {url} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n".encode())
        expected = self.expected(step, tunnel=False)
        if step.door == "redirected" and expected and not self.expected(step, tunnel=True):
            # The request may come too late to be seen before a tunnel is judged, which is the narrower verdict.
            expected = self._is_answered(conn)
            if not expected:
                return
        reply = read_reply(conn)
        assert reply.status in (200, 403), reply
        allowed = reply.status == 200
        arrived = bool(self._server.seen) and self._server.seen[-1].endswith(mark)
        assert allowed == arrived, f"{step} was answered with {reply.status}, and arrived: {arrived}"
        assert allowed == expected, f"{step} was answered with {reply.status}"
        self._server.verdicts.add(allowed)
        if b"connection: close" in reply.head.lower() or where in self._open:
            conn.close()
        else:
            self._open[where] = conn

    def _is_answered(self, conn: socket.socket) -> bool:
        try:
            return conn.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) == b"HTTP/1.1 200"
        except ConnectionResetError:
            return False

    def _reach(self, step: Request) -> socket.socket | None:
        """A connection by this door on which to send a request. None: a tunnel is refused, and rightly."""
        port = self._server.ports[step.port]
        conn = self._gate.reach(step.host, port) if step.door == "redirected" else self._gate.connect()
        self._made.append(conn)
        if step.door == "redirected":
            return conn
        if step.door == "absolute":
            return conn
        if step.door == "connect":
            opened = connect_dial(conn, f"{step.host}:{port}".encode()).status == 200
        else:
            opened = socks_dial(conn, step.host.encode(), port) == 0
        assert opened == self.expected(step, tunnel=True), f"the tunnel for {step} was opened: {opened}"
        if opened:
            return conn
        conn.close()
        return None

    def _take_raw(self, step: Request) -> None:
        """A tunnel with a protocol in it that the gateway does not know."""
        door = step.door.removeprefix("raw ")
        conn = self._reach(Request(door, step.host, step.port, step.method, step.path, fresh=True))
        if conn is None:
            return
        with conn:
            try:
                conn.sendall(b"\0ping")
                allowed = conn.recv(len(_PONG)) == _PONG
            except ConnectionResetError:
                allowed = False
        assert allowed == self.expected(step, tunnel=True), f"{step} was let through: {allowed}"
