"""Asks about places that no rule lists: a person at a terminal, another program, or a callback.

A question is asked once, however many connections wait for its answer. A yes becomes a rule, so that all that follows
is judged as ever. Without an answer in time it is a no. Nothing is resolved or dialled while a question is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from exeat.gateway.gates.judging import place_now
from exeat.gateway.gates.resolve import is_own_address
from exeat.policy import (
    LOCALHOST,
    Address,
    AddressClass,
    Decision,
    Rule,
    Source,
    classify,
    parse_rule,
)
from exeat.reasons import LISTABLE

if TYPE_CHECKING:
    from exeat.gateway.gates.session import Session
    from exeat.gateway.state import Place, State

_log = logging.getLogger("exeat")

# A program may ask for any number of hosts; beyond this many open questions they are denied as without a question.
MAX_OPEN: Final = 256
_MAX_REFUSED: Final = 10_000
_LOOK_S: Final = 1.0  # how often it is checked that the one who waits is still there
_SPARE_S: Final = 5.0


class Question(NamedTuple):
    """May this place be reached? `rule` is what a yes adds. `inside`: an address that is not public, or `localhost`.

    `program` is the name that the asking program gave itself; "" if unknown.
    """

    number: int
    host: str
    port: int
    rule: str
    inside: bool
    program: str = ""


class Answer(NamedTuple):
    """Yes or no, and who said it."""

    allow: bool
    by: str


Answerer = Callable[[Question], Awaitable["bool | Answer"]]
Grant = Callable[[Rule, str], None]
WhoAsks = Callable[[object], str]  # a client's address, as its transport has it -> the name of its program, or ""


class _Open:
    """A question under way."""

    __slots__ = ("question", "task", "waiting")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.waiting = 0
        self.task: asyncio.Task[None]


class Questions:
    """The questions of one gateway."""

    def __init__(self, ask: Answerer, wait_s: float, grant: Grant, who_asks: WhoAsks | None = None) -> None:
        self._ask = ask
        self._who_asks = who_asks
        self._wait_s = wait_s
        self._grant = grant
        self._open: dict[tuple[str, int], _Open] = {}
        self._refused: dict[tuple[str, int], None] = {}
        self._number = 0

    def may_ask(self, decision: Decision) -> bool:
        """Is this a denial that an answer could turn into a yes?"""
        return decision.reason in LISTABLE

    def waiting(self, question: Question) -> int:
        """How many connections wait for an answer."""
        found = self._open.get((question.host, question.port))
        return found.waiting if found is not None else 0

    async def settle(self, session: Session, place: Place) -> Place:
        """Wait until there is an answer. Returns the place as the policy then has it."""
        state = session.state
        if not self.may_ask(place.decision) or place.key in self._refused:
            return place
        found = self._open.get(place.key)
        if found is None:
            if len(self._open) >= MAX_OPEN:
                return place
            found = self._begin(session, place)
        found.waiting += 1
        # The limits of a connection are for peers that dawdle. Here it is the peer who waits.
        session.watch(self._wait_s + _SPARE_S, session.client.abort)
        try:
            # A client that has finished sending has most likely given up. If it has not, no is the safe answer.
            while not (found.task.done() or session.client.closed or session.client.eof):
                await asyncio.wait((found.task,), timeout=_LOOK_S)
        finally:
            found.waiting -= 1
            if not found.waiting:
                found.task.cancel()  # no connection waits for it any more
        session.watch(state.limits.head_s, session.client.abort)
        return place_now(state, place)

    def on_new_policy(self, state: State) -> None:
        """Rules have changed: what they decide now need not be asked any more."""
        for found in list(self._open.values()):
            if not self.may_ask(state.find(found.question.rule.encode("ascii"), 0).decision):
                found.task.cancel()

    def close(self) -> None:
        for found in list(self._open.values()):
            found.task.cancel()

    def _begin(self, session: Session, place: Place) -> _Open:
        self._number += 1
        peer = session.client.transport.get_extra_info("peername")
        program = self._who_asks(peer) if self._who_asks is not None and peer else ""
        # A rule for `localhost` means the host itself, unlike one for any other name that may lead there.
        inside = place.host == LOCALHOST or (
            isinstance(place.host, Address)
            and (classify(place.host.ip) is not AddressClass.PUBLIC or is_own_address(place.host.ip))
        )
        # The rule is for this port alone, 80 and 443 too: a yes to one must not undo a no to the other.
        question = Question(self._number, place.host_text, place.port, str(place), inside, program)
        found = self._open[place.key] = _Open(question)
        found.task = asyncio.get_running_loop().create_task(self._decide(found))
        # Also of one that is given up before it has begun, of which `_decide` never hears.
        found.task.add_done_callback(lambda _: self._forget(place.key, found))
        return found

    def _forget(self, key: tuple[str, int], found: _Open) -> None:
        if self._open.get(key) is found:
            del self._open[key]

    async def _decide(self, found: _Open) -> None:
        question = found.question
        key = question.host, question.port
        try:
            async with asyncio.timeout(self._wait_s):
                answer = await self._ask(question)
        except TimeoutError:
            return  # a no for those who wait; whoever comes later asks again
        except Exception:
            _log.exception("the question about %s:%d could not be answered", *key)
            return
        finally:
            self._forget(key, found)
        allow, by = answer if isinstance(answer, Answer) else (answer, "callback")
        if allow is True:  # and nothing that is merely true
            self._grant(parse_rule(question.rule, Source("an answer")), by)
        elif len(self._refused) < _MAX_REFUSED:
            self._refused[key] = None
