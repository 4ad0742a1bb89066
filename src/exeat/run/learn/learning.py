"""Records what a command reached while everything public was allowed, from the events of its gateway.

Lives in the gateway's process, where nothing can be loaded once the command runs: all that is needed is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from exeat.audit.record import CUT_MARK, MAX_TEXT_CHARS
from exeat.errors import HostError
from exeat.policy import Host, Name, Policy, Rule, canonical_host
from exeat.reasons import Reason
from exeat.run.learn.policy_text import Learned, write_policy
from exeat.run.learn.rules import Reached

if TYPE_CHECKING:
    from exeat.audit.batch import EventStream

MAX_PLACES: Final = 10_000
_MAX_REFUSED: Final = 1_000
_MAX_ADDRESSES: Final = 16  # of one place
_MAX_RULES: Final = 16  # of one place
_MAX_QUEUED: Final = 100_000
_BY_LEARNING: Final = "learn"
_LOOKUP: Final = "dns"


class Watched(Protocol):
    """What is needed of a gateway."""

    @property
    def policy(self) -> Policy: ...

    def events(self, *, max_queued: int = ...) -> EventStream: ...


class Learning:
    """Follows a gateway from `start` to `stop`. What it keeps is bounded, whatever the command asks for."""

    def __init__(self, gateway: Watched) -> None:
        self._gateway = gateway
        self._learned = Learned()
        self._granted: set[str] = set()  # rules that were granted, not given
        self._stream: EventStream | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on. The gateway must have been started."""
        self._stream = self._gateway.events(max_queued=_MAX_QUEUED)
        self._task = asyncio.get_running_loop().create_task(self._follow(self._stream))

    async def stop(self) -> None:
        """Take in what has been told so far, and no more. After the gateway's end it has every last line."""
        if self._task is not None and self._stream is not None:
            self._stream.end()
            await self._task
            self._stream.close()
            self._task = self._stream = None

    def policy_text(self, command: Sequence[str], form: str) -> str:
        """The tightest policy for what was let through, as text: `toml`, or `txt` for a list of rules."""
        return write_policy(self._learned, self._gateway.policy, command, form)

    async def _follow(self, stream: EventStream) -> None:
        async for event in stream:
            self.take(event)

    def take(self, event: dict[str, Any]) -> None:
        """One line of the log."""
        match event.get("event"):
            case "grant" if event.get("by") == _BY_LEARNING:
                if len(self._granted) < 2 * MAX_PLACES:
                    self._granted.add(event["rule"])
            case "decision" if event["verdict"] == "allow":
                self._allowed(event)
            case "decision":
                self._refused(event)
            case "end":
                self._ended(event)
            case "gap":
                self._learned.lost += int(event.get("lost") or 0)
            case _:
                pass

    def _allowed(self, event: dict[str, Any]) -> None:
        places, where = self._learned.places, (event["host"], event["port"])
        reached = places.get(where)
        if reached is None:
            if len(places) >= MAX_PLACES:
                self._learned.left_out += 1
                return
            try:
                reached = Reached(canonical_host(event["host"]), event["port"])
            except HostError:
                return  # not from a gateway of ours
            places[where] = reached
        # A tunnel that is looked into is not what went out: its requests are, and they have lines of their own.
        reached.requests += event["reason"] != Reason.INTERCEPTED
        _note_address(reached, event["address"])
        text = event["rule"]
        if text in self._granted:
            reached.is_new = True
        elif text not in reached.rules and len(reached.rules) < _MAX_RULES:
            reached.rules[text] = _find_rule(self._gateway.policy, reached.host, text)

    def _ended(self, event: dict[str, Any]) -> None:
        reached = self._learned.places.get((event["host"], event["port"]))
        if reached is not None and event["verdict"] == "allow":
            reached.sent += event["sent"]
            reached.received += event["received"]
            _note_address(reached, event["address"])

    def _refused(self, event: dict[str, Any]) -> None:
        if event["protocol"] == _LOOKUP:
            return  # only looked up, not reached for
        refused = self._learned.refused
        what = (event["host"], event["port"], event["reason"], event["address"], event["rule"])
        if what in refused or len(refused) < _MAX_REFUSED:
            refused[what] = refused.get(what, 0) + 1
        else:
            self._learned.refused_more += 1


def _note_address(reached: Reached, address: str) -> None:
    if address and len(reached.addresses) < _MAX_ADDRESSES:
        reached.addresses.add(address)


def _find_rule(policy: Policy, host: Host, text: str) -> Rule | None:
    """The rule that a record names. A long text is cut there; of two that begin alike, neither is it."""
    covering = policy.allows.for_name(host.text) if isinstance(host, Name) else policy.allows.for_address(host.ip)
    if len(text) == MAX_TEXT_CHARS + len(CUT_MARK) and text.endswith(CUT_MARK):
        found = [rule for rule in covering if rule.text.startswith(text.removesuffix(CUT_MARK))]
    else:
        found = [rule for rule in covering if rule.text == text]
    return found[0] if len(found) == 1 else None
