"""A gateway, a server behind it, and every witness of what went through: audit log, dials, DNS, the server's bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.dial import DialError, dial
from exeat.gateway.gates.resolve import IPAddress
from exeat.policy.host import unmapped
from exeat.reasons import ProxyError
from tests.support.gateways.gate import Gate
from tests.support.gateways.redirected import Namespace, require
from tests.support.origins.raw import RawOrigin

WAIT_S = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread does. The limit is for a test that fails, not for one that passes."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


class Dials:
    """Stands in for `dial`: notes every attempt, lets those to loopback through and refuses all others.

    So a test can show that an address would have been connected to without a packet leaving the machine.
    """

    def __init__(self) -> None:
        self.made: list[tuple[tuple[str, ...], int]] = []
        self.before: Callable[[], Awaitable[None]] | None = None  # awaited before each attempt

    async def __call__(
        self, streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
    ) -> tuple[Channel, IPAddress]:
        self.made.append((tuple(map(str, addresses)), port))
        if self.before is not None:
            await self.before()
        if not all(unmapped(ip).is_loopback for ip in addresses):
            raise DialError("the server refused the connection", ProxyError.CONNECTION_REFUSED)
        return await dial(streams, addresses, port, timeout_s)


class AnyName(dict[str, Sequence[str]]):
    """DNS in which every name exists, here."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Sequence[str]:
        return ["127.0.0.1"]


class Script(dict[str, Sequence[str]]):
    """DNS that has another answer each time, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        super().__init__()
        self.answers = list(answers)

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Sequence[str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass(frozen=True)
class Mark:
    """How far each witness was at some moment."""

    records: int
    dials: int
    asked: int
    connections: int
    received: int


@dataclass(frozen=True)
class Seen:
    """What each witness has noted since a mark."""

    decisions: tuple[dict[str, Any], ...]
    ends: tuple[dict[str, Any], ...]
    dials: tuple[tuple[tuple[str, ...], int], ...]
    asked: tuple[str, ...]
    connections: int
    received: int


def _is_repeat(record: dict[str, Any]) -> bool:
    """A line that counts DNS questions of seconds ago, and so answers none of now."""
    return record.get("protocol") == "dns" and record["note"].startswith("asked ")


class Scene:
    """One gateway in front of one server. Names are `good.test`, `*.wild.test` (allowed) and any other (not)."""

    def __init__(self, gate: Gate, origin: RawOrigin, dials: Dials) -> None:
        self.gate = gate
        self.origin = origin
        self.dials = dials
        self.unresolved: set[bytes] = set()  # names that DNS inside has refused
        self._records: list[dict[str, Any]] = []
        self._offset = 0

    @property
    def port(self) -> int:
        return self.origin.port

    @property
    def inside(self) -> Namespace:
        """The namespace that the gateway serves. Where there can be none, the test is skipped."""
        require()
        return self.gate.inside

    def records(self) -> list[dict[str, Any]]:
        """The audit log so far, reading only what is new."""
        with self.gate.audit.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._records += [json.loads(line) for line in whole.split(b"\n")[:-1]]
        return self._records

    def mark(self) -> Mark:
        return Mark(
            len(self.records()),
            len(self.dials.made),
            len(self.gate.asked),
            self.origin.connections,
            self.origin.received,
        )

    def since(self, mark: Mark, *, decisions: int = 0, ends: int = 0) -> Seen:
        """What was noted since, once there are that many records: a refusal is answered while it is being written."""

        def found(event: str) -> tuple[dict[str, Any], ...]:
            new = self.records()[mark.records :]
            return tuple(record for record in new if record["event"] == event and not _is_repeat(record))

        wait_until(lambda: len(found("decision")) >= decisions, f"{decisions} decisions")
        wait_until(lambda: len(found("end")) >= ends, f"{ends} ends")
        return Seen(
            found("decision"),
            found("end"),
            tuple(self.dials.made[mark.dials :]),
            tuple(self.gate.asked[mark.asked :]),
            self.origin.connections - mark.connections,
            self.origin.received - mark.received,
        )

    def settle(self) -> None:
        """Wait until no client connection is left and every record of them is written."""
        counters = self.gate.gateway.counters
        wait_until(lambda: counters.open_connections == 0, "all connections to end")
        self.gate.call(asyncio.sleep(0))

    def forget_names(self) -> None:
        """Empty the gateway's short memory of DNS answers, as if its few seconds had passed."""

        async def forget() -> None:
            self.gate.gateway.state.resolver.forget_all()

        self.gate.call(forget())
