"""Refusals that a program repeats without being asked to: one line for the first, a number for the rest.

A resolver library asks for A and AAAA, tries again, and asks every server it knows; a QUIC client sends its first
packet over and over. Nothing of it is lost: the counters count each one, and the log gets the repeats as a second line
with their number, written when the time is over, when the memory is full, or on closing, whichever is first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from exeat.audit import Record

if TYPE_CHECKING:
    from exeat.gateway.state import State

DNS: Final = "dns"
_REPEAT_S: Final = 5.0
_MAX_RECENT: Final = 1_024


class _Recent:
    """A denial that was put on record a moment ago, and how often it came again since."""

    __slots__ = ("record", "repeats", "until")

    def __init__(self, record: Record, until: float) -> None:
        self.record = record
        self.repeats = 0
        self.until = until


class Denials:
    """The records of what is refused: at once for a place that is new, counted for what follows within seconds."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._recent: OrderedDict[tuple[str, str, int], _Recent] = OrderedDict()  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, protocol: str, host: str, port: int, method: str, reason: str, *, rule: str = "", note: str = ""
    ) -> None:
        """Count one refusal, and record it if it is the first of its kind for a while."""
        state, where = self._state, (protocol, host, port)
        state.counters.decided("deny", reason, host)
        now = state.loop.time()
        self._end_until(now)
        known = self._recent.get(where)
        if known is not None:
            known.repeats += 1
            return
        if len(self._recent) >= _MAX_RECENT:
            self._end(self._recent.popitem(last=False)[1])
        state.counters.block(host, 0 if protocol == DNS else port, reason)
        record = Record(
            sandbox=state.sandbox,
            jail=state.jail,
            protocol=protocol,
            method=method,
            host=host,
            port=port,
            rule=rule,
            reason=reason,
            verdict="deny",
            status=403,  # as at every other door: a reader of the log looks for one number
            note=note,
        )
        state.journal.append(record.encode("decision"))
        self._recent[where] = _Recent(record, now + _REPEAT_S)
        if self._timer is None:
            self._timer = state.loop.call_later(_REPEAT_S, self._on_timer)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_until(float("inf"))

    def _on_timer(self) -> None:
        self._timer = None
        self._end_until(self._state.loop.time())
        oldest = next(iter(self._recent.values()), None)
        if oldest is not None:
            self._timer = self._state.loop.call_at(oldest.until, self._on_timer)

    def _end_until(self, now: float) -> None:
        while self._recent:
            oldest = next(iter(self._recent.values()))
            if oldest.until > now:
                return
            self._recent.popitem(last=False)
            self._end(oldest)

    def _end(self, recent: _Recent) -> None:
        if recent.repeats:
            recent.record.note = f"{recent.repeats} more times within {_REPEAT_S:.0f} s"
            self._state.journal.append(recent.record.encode("repeat"))
