"""The record of every request, tunnel, lookup and packet: a line for the decision, and one for the end.

Nothing else in the gateway changes a record or writes these lines. Each line is counted as it is written.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from exeat.audit.record import Record
from exeat.audit.share import Log
from exeat.errors import AuditError, ProtocolError
from exeat.gateway.record.counters import Counters, is_failure
from exeat.policy import Decision
from exeat.reasons import Ending, Reason

DNS: Final = "dns"
_REPEAT_S: Final = 5.0
_MAX_RECENT: Final = 1_024
_MAX_IDENTITIES: Final = 256
_MAX_IDENTITY_CHARS: Final = 1_000


class Records:
    """The records of one gateway."""

    def __init__(self, journal: Log, counters: Counters, sandbox: str, jail: str) -> None:
        self.journal = journal
        self.counters = counters
        self.sandbox = sandbox
        self.jail = jail
        # What has been said of a place under a rule, as text: a program comes back to the same few, and to encode it
        # takes 1.5 us.
        self.identities: dict[tuple[object, ...], str] = {}

    def new(self, conn: int, req: int, protocol: str, method: str) -> AccessRecord:
        record = AccessRecord(
            conn=conn,
            req=req,
            sandbox=self.sandbox,
            jail=self.jail,
            protocol=protocol,
            method=method,
            started=time.monotonic(),
        )
        record.book = self
        return record


class AccessRecord(Record):
    """One request or tunnel. It is told what is found out, and writes itself down when something is decided or over."""

    __slots__ = ("book",)
    book: Records

    def _encode_identity(self) -> str:
        if self.note or self.verdict != "allow":
            return Record._encode_identity(self)  # rare, or no two alike
        identities = self.book.identities
        key = (self.protocol, self.method, self.host, self.port, self.address, self.rule, self.reason, self.secrets)
        text = identities.get(key)
        if text is None:
            text = Record._encode_identity(self)
            if len(text) <= _MAX_IDENTITY_CHARS:
                if len(identities) >= _MAX_IDENTITIES:
                    identities.clear()
                identities[key] = text
        return text

    # What is found out

    def names(self, place: tuple[str, int]) -> None:
        """Host and port that the client asked for."""
        self.host, self.port = place

    def leads_to(self, address: str) -> None:
        self.address = address

    def uses(self, secrets: tuple[str, ...]) -> None:
        """The names of secrets that are in it."""
        self.secrets = secrets

    def answered(self, status: int) -> None:
        """The client has been told that it may begin."""
        self.status = status

    # The decision

    async def allowed(self, decision: Decision, reason: Reason | None = None) -> bool:
        """Write that it is allowed. False: that could not be written, so it must not be done.

        `reason`: another than the decision's.
        """
        self.verdict, self.reason, self.rule = "allow", reason or decision.reason, decision.rule_text
        try:
            await self.book.journal.commit(self.encode("decision"))
        except AuditError:
            self.book.counters.decided("deny", Reason.AUDIT_FAILED, self.host, self.port)
            return False
        self.book.counters.decided("allow", self.reason, self.host, self.port)
        return True

    def denied(self, decision: Decision, address: str = "", note: str = "") -> None:
        """By the policy, for what was asked, or for the address that it leads to."""
        self.rule = decision.rule_text
        self.address = address or self.address
        self._deny(decision.reason, 403, note)

    def malformed(self, error: ProtocolError) -> None:
        """It could be read two ways, or not at all."""
        note = f"{error.public}: {error.detail}" if error.detail else error.public
        self._deny(Reason.MALFORMED, error.status, note)

    def leads_nowhere(self, why: str) -> None:
        """Where it was meant to go is not known."""
        self._deny(Reason.UNKNOWN_ADDRESS, 403, why)

    def lacks_credentials(self, note: str = "") -> None:
        """The client did not say who it is, or said it wrong. It has asked for no place yet."""
        self._refuse_client(Reason.CREDENTIALS, 407, note)

    def is_of_stranger(self, address: str) -> None:
        """Its address is that of no client."""
        self._refuse_client(Reason.UNKNOWN_CLIENT, 403, f"from {address}")

    def _refuse_client(self, reason: Reason, status: int, note: str) -> None:
        self.verdict, self.reason, self.status, self.note = "deny", reason, status, note
        self.book.counters.decided("deny", reason, "")
        self.book.journal.append(self.encode("decision"))

    def denied_inside(self, reason: Reason, decision: Decision | None = None, note: str | None = None) -> None:
        """Something in it must not pass, though it was allowed, or would be by `decision`. Its end is still to come."""
        if decision is not None:
            self.rule = decision.rule_text
        allowed = self.verdict, self.reason, self.status
        self._deny(reason, 403, self.note if note is None else note)
        self.verdict, self.reason, self.status = allowed

    def _deny(self, reason: Reason, status: int, note: str) -> None:
        self.verdict, self.reason, self.status, self.note = "deny", reason, status, note
        self.book.counters.decided("deny", reason, self.host, self.port)
        self.book.journal.append(self.encode("decision"))

    # The end of what was allowed

    def failed(self, status: int, error: str) -> None:
        """Nothing came of it."""
        self.status, self.note = status, error
        if is_failure(error):
            self.book.counters.fail(self.host, self.port, error)
        self.book.journal.append(self.encode("end"))

    def finished(self, note: str, sent: int, received: int, status: int | None = None) -> None:
        """It is over. `note`: why it ended early, if it did. `status`: unless it was answered before."""
        if status is not None:
            self.status = status
        self.sent, self.received, self.note = sent, received, note
        counters = self.book.counters
        counters.ended(self.host, sent, received)
        # A server that resets a connection when all was said has only a rude way to close it.
        if note and is_failure(note) and not (note == Ending.UPSTREAM_RESET and received):
            counters.fail(self.host, self.port, note)
        self.book.journal.append(self.encode("end"))


class _Recent:
    """A denial that was put on record a moment ago, and how often it came again since."""

    __slots__ = ("record", "repeats", "until")

    def __init__(self, record: Record, until: float) -> None:
        self.record = record
        self.repeats = 0
        self.until = until


class Denials:
    """Refusals that a program repeats without being asked to: one line for the first, a number for the rest.

    A resolver library asks for A and AAAA, tries again, and asks every server it knows; a QUIC client sends its first
    packet over and over. Nothing of it is lost: the counters count each one, and the log gets the repeats as a second
    line with their number, written when the time is over, when the memory is full, or on closing.
    """

    def __init__(self, book: Records, loop: asyncio.AbstractEventLoop) -> None:
        self._book = book
        self._loop = loop
        self._recent: OrderedDict[tuple[str, str, int], _Recent] = OrderedDict()  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, protocol: str, host: str, port: int, method: str, reason: Reason, *, rule: str = "", note: str = ""
    ) -> None:
        """Count one refusal, and record it if it is the first of its kind for a while."""
        book, where = self._book, (protocol, host, port)
        book.counters.decided("deny", reason, host)
        now = self._loop.time()
        self._end_until(now)
        known = self._recent.get(where)
        if known is not None:
            known.repeats += 1
            return
        if len(self._recent) >= _MAX_RECENT:
            self._end(self._recent.popitem(last=False)[1])
        book.counters.block(host, 0 if protocol == DNS else port, reason)
        record = Record(
            sandbox=book.sandbox,
            jail=book.jail,
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
        book.journal.append(record.encode("decision"))
        self._recent[where] = _Recent(record, now + _REPEAT_S)
        if self._timer is None:
            self._timer = self._loop.call_later(_REPEAT_S, self._on_timer)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_until(float("inf"))

    def _on_timer(self) -> None:
        self._timer = None
        self._end_until(self._loop.time())
        oldest = next(iter(self._recent.values()), None)
        if oldest is not None:
            self._timer = self._loop.call_at(oldest.until, self._on_timer)

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
            self._book.journal.append(recent.record.encode("repeat"))
