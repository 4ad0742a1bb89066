"""A gateway that serves a namespace, with witnesses: every dial, every name asked for, every address held."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address
from typing import Any

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.dial import dial
from exeat.gateway.gates.resolve import IPAddress
from tests.support.gateways.gate import Gate
from tests.support.gateways.scene import wait_until

_LOOPBACK = IPv4Address("127.0.0.1")


class Detour:
    """Stands in for `dial`: notes where to, and goes to a port of loopback instead: no server needs port 443."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        self.before: Callable[[], Awaitable[object]] | None = None  # awaited before each attempt
        self.ports: dict[int, int] = {}  # the port asked for -> the one gone to

    async def __call__(
        self, streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
    ) -> tuple[Channel, IPAddress]:
        self.made += [(str(ip), port) for ip in addresses]
        if self.before is not None:
            await self.before()
        channel, _ = await dial(streams, [_LOOPBACK], self.ports.get(port, port), timeout_s)
        return channel, addresses[0]


class Holds:
    """Counts the connections that live on synthetic addresses."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    @property
    def live(self) -> int:
        return self.begun - self.ended


class Inside:
    """What a test does inside the namespace of a gateway, and what it finds on record."""

    def __init__(self, gate: Gate, detour: Detour, holds: Holds) -> None:
        self.gate = gate
        self.detour = detour
        self.holds = holds

    def reach(self, host: str, port: int, *, ipv6: bool = False) -> socket.socket:
        return self.gate.reach(host, port, ipv6=ipv6)

    def settle(self) -> None:
        """Wait until every connection has ended and its records are written."""
        wait_until(lambda: self.gate.gateway.counters.open_connections == 0, "all connections to end")
        self.gate.call(asyncio.sleep(0))

    def decisions(self) -> list[dict[str, Any]]:
        self.settle()
        return self.gate.decisions()

    def ends(self) -> list[dict[str, Any]]:
        self.settle()
        return [line for line in self.gate.lines() if line["event"] == "end"]

    def denial(self) -> dict[str, Any]:
        """The one record there is: a denial, after which nothing was asked for or dialled."""
        (record,) = self.decisions()
        assert record["verdict"] == "deny"
        assert record["status"] >= 400
        assert self.gate.asked == [], "a name was asked for"
        assert self.detour.made == [], "something was dialled"
        assert self.ends() == []
        return record


def was_reset(conn: socket.socket) -> bool:
    """Did the connection break, without a byte, instead of ending in order?"""
    try:
        data = conn.recv(65536)
    except ConnectionResetError:
        return True
    assert data == b"", f"not broken: {data!r} came"
    return False
