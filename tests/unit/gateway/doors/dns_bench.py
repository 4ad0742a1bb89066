"""A DNS door without a gateway around it, and the loops that it must work on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import uvloop

from exeat.audit.journal import open_journal
from exeat.gateway.doors.dns import TTL_S, DnsDoor
from exeat.gateway.doors.synthetic import SyntheticNames
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.resolve import Resolver
from exeat.gateway.limits import Limits
from exeat.gateway.state import State
from exeat.sources import make_policy

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


async def no_lookup(name: str) -> Sequence[str]:
    raise AssertionError(f"{name} was resolved")


class Bench:
    """A door on a state of its own, with a clock for the addresses that only the test moves."""

    def __init__(self, audit: Path, allow: Sequence[str], deny: Sequence[str], size: int) -> None:
        self.audit = audit
        self.now = 0.0
        self.journal = open_journal(str(audit))
        self.resolver = Resolver(5, no_lookup)
        self.state = State(
            make_policy(allow, deny),
            sandbox="box",
            jail="netns",
            limits=Limits(),
            journal=self.journal,
            resolver=self.resolver,
            credentials=None,
            streams=Streams(asyncio.get_running_loop()),
        )
        self.names = SyntheticNames(lambda: self.now, size)
        self.door = DnsDoor(self.state, self.names)

    def ask(self, name: str, qtype: str = "A", *, tcp: bool = False, **options: Any) -> dns.message.Message:
        query = dns.message.make_query(name, qtype, **options)
        data = self.door.answer(query.to_wire(), tcp=tcp)
        assert data is not None
        reply = dns.message.from_wire(data)
        assert query.is_response(reply)
        return reply

    def values(self, name: str, qtype: str = "A") -> list[str]:
        """The answers, which must be there without an error and short-lived."""
        reply = self.ask(name, qtype)
        assert reply.rcode() == dns.rcode.NOERROR
        assert all(rrset.ttl == TTL_S for rrset in reply.answer)
        return [str(value) for rrset in reply.answer for value in rrset]

    def is_refused(self, name: str, qtype: str = "A") -> bool:
        reply = self.ask(name, qtype)
        assert reply.answer == []
        return reply.rcode() == dns.rcode.NXDOMAIN

    async def lines(self) -> list[dict[str, Any]]:
        """The refusals on record and their repeats, once the tick that collected them is over."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line["event"] in ("decision", "repeat")]


@asynccontextmanager
async def opened(
    audit: Path, allow: Sequence[str] = ("good.test",), deny: Sequence[str] = (), size: int = 64
) -> AsyncIterator[Bench]:
    bench = Bench(audit, allow, deny, size)
    try:
        yield bench
        assert bench.resolver.lookups == 0
        assert bench.state.counters.internal_errors == 0
    finally:
        await bench.door.close()
        await bench.journal.aclose()


def run(main: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())  # type: ignore[arg-type]  # every main here is a coroutine function


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the time limit of the test is the bound."""
    while not condition():  # noqa: ASYNC110 - nothing here could set an event
        await asyncio.sleep(0.01)


def query_for(name: str, qtype: str = "A") -> dns.message.Message:
    return dns.message.make_query(name, qtype)
