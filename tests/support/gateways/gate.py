"""A real gateway on a thread of its own, so that tests can be plain blocking code."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from exeat.gateway.gates.questions import Answerer
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.policy import Policy
from exeat.sources import make_policy
from tests.support.gateways.redirected import Listeners, Namespace

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread until told to stop."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 30) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Gate:
    """A started gateway. `names` answers DNS; every name asked for is kept in `asked`.

    With a namespace `inside` it serves that too, redirected connections and DNS.
    """

    def __init__(
        self,
        audit: Path,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        hosts: Mapping[str, str] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        limits: Limits | None = None,
        credentials: tuple[str, str] | None = None,
        audit_target: str | None = None,
        inside: Namespace | None = None,
        ask: Answerer | None = None,
        ask_timeout_s: float = 30.0,
    ) -> None:
        self.audit = audit
        self._inside = inside
        self.asked: list[str] = []
        self.names = dict(names or {})
        policy = make_policy(allow, deny, hosts)
        listeners, jail = _listeners(inside)
        self._thread = LoopThread()
        self.gateway = Gateway(
            policy,
            audit=audit_target or str(audit),
            limits=limits,
            credentials=credentials,
            lookup=self._lookup,
            sandbox="test",
            listeners=listeners,
            redirected=inside is not None,
            dns_udp=jail.dns_udp,
            dns_tcp=jail.dns_tcp,
            ask=ask,
            ask_timeout_s=ask_timeout_s,
        )
        self._thread.call(self.gateway.start())
        self.port = self.gateway.port

    async def _lookup(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name not in self.names:
            raise OSError("no such name")
        return self.names[name]

    def connect(self, timeout_s: float = 40) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    @property
    def inside(self) -> Namespace:
        assert self._inside is not None, "this gateway serves no namespace"
        return self._inside

    def stand_in(self, name: str, *, ipv6: bool = False) -> str:
        """The address that stands for a name inside, without asking DNS for it."""

        async def give() -> str:
            names = self.gateway.state.names
            assert names is not None
            found = names.addresses(name)
            assert found is not None
            return str(found[ipv6])

        return self.call(give())

    def reach(self, host: str, port: int, *, ipv6: bool = False) -> socket.socket:
        """A redirected connection from inside, to a name by its stand-in or to an address."""
        is_address = ":" in host or host.replace(".", "").isdigit()
        return self.inside.connect(host if is_address else self.stand_in(host, ipv6=ipv6), port)

    def send(self, data: bytes, timeout_s: float = 10) -> bytes:
        """Send, finish sending, and give everything that comes back."""
        with self.connect(timeout_s) as conn:
            conn.sendall(data)
            conn.shutdown(socket.SHUT_WR)
            return read_all(conn)

    def set_policy(self, policy: Policy) -> int:
        return self.call(self.gateway.set_policy(policy))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    def lines(self) -> list[dict[str, Any]]:
        """The audit log so far."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def decisions(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == "decision"]

    def close(self) -> None:
        self._thread.call(self.gateway.aclose())
        self._thread.stop()


def _listeners(inside: Namespace | None) -> tuple[list[socket.socket] | None, Listeners]:
    """A listener on loopback, and those of the namespace; None to let the gateway make its own."""
    if inside is None:
        return None, Listeners((), (), ())
    jail = inside.listen()
    return [socket.create_server(("127.0.0.1", 0)), *jail.tcp], jail


def read_all(conn: socket.socket) -> bytes:
    """Everything until the peer finishes or resets."""
    received = bytearray()
    try:
        while data := conn.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return bytes(received)


def read_until(conn: socket.socket, mark: bytes) -> bytes:
    """Everything up to and including `mark`; whatever came instead if the peer finished first."""
    received = bytearray()
    while mark not in received:
        data = conn.recv(65536)
        if not data:
            break
        received += data
    return bytes(received)
