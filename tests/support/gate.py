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

from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.policy import Policy
from exeat.sources import make_policy

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
    """A started gateway. `names` answers DNS; every name asked for is kept in `asked`."""

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
    ) -> None:
        self.audit = audit
        self.asked: list[str] = []
        self.names = dict(names or {})
        self._thread = LoopThread()
        self.gateway = Gateway(
            make_policy(allow, deny, hosts),
            audit=audit_target or str(audit),
            limits=limits,
            credentials=credentials,
            lookup=self._lookup,
            sandbox="test",
        )
        self._thread.call(self.gateway.start())
        self.port = self.gateway.port

    async def _lookup(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name not in self.names:
            raise OSError("no such name")
        return self.names[name]

    def connect(self, timeout_s: float = 10) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

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
