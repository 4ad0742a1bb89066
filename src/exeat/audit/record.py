"""The content of one line of the log, and its encoding.

Every string passes through the C JSON escaper, so text that a sandbox chose (a host, a method) can
never end a line, start another one or reach a terminal as an escape sequence. The result is the middle
of a line: the journal puts `seq` and `chain` before it and `policy` and `hash` after it.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quote

MAX_TEXT_CHARS = 300
CUT_MARK = "…"
_RESERVED = frozenset({"seq", "chain", "time", "event", "policy", "hash"})

# When the second that the prefix belongs to began, and the prefix, swapped as one value so that threads agree.
# Formatting the second costs 0.9 us, which is then paid once a second: a stamp takes 0.25 us, not 1.3.
_stamp: tuple[int, str] = (-1_000_000_000, "")


def _now() -> str:
    """UTC, ISO 8601, microseconds: `2025-01-31T23:59:59.000001Z`."""
    global _stamp
    now_ns = time.time_ns()
    began_ns, prefix = _stamp
    rest_ns = now_ns - began_ns
    if not 0 <= rest_ns < 1_000_000_000:
        second, rest_ns = divmod(now_ns, 1_000_000_000)
        prefix = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        _stamp = (now_ns - rest_ns, prefix)
    return f"{prefix}{rest_ns // 1000:06d}Z"


def _cut(value: str) -> str:
    """At most `MAX_TEXT_CHARS` characters and the mark: a flood of long names must not fill the disk."""
    return value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + CUT_MARK


def _text(value: str) -> str:
    """A JSON string, quotes included, cut if it is long."""
    return _quote(_cut(value))


@dataclass(slots=True, eq=False, kw_only=True)
class Record:
    """One decided request. The gateway fills it in as it learns; it must never hold a secret's value.

    `started` is `time.monotonic()`; `duration_ms` is taken from it when a line needs it and is not set.
    `secrets` are names only.
    """

    conn: int = 0
    req: int = 0
    sandbox: str = ""
    jail: str = ""
    protocol: str = ""
    method: str = ""
    host: str = ""
    port: int = 0
    address: str = ""
    rule: str = ""
    reason: str = ""
    verdict: str = "deny"
    status: int = 0
    sent: int = 0
    received: int = 0
    started: float = 0.0
    duration_ms: float = 0.0
    secrets: tuple[str, ...] = ()
    note: str = ""
    _identity: str = field(default="", init=False, repr=False)
    _known: tuple[object, ...] | None = field(default=None, init=False, repr=False)

    def encode(self, event: str) -> str:
        """The middle of a `decision`, `end` or `repeat` line.

        An allowed decision is written before anything is dialled, so it has no outcome yet; every other
        line ends with status, bytes each way and duration.
        """
        # The end line repeats what the decision line said. Comparing what can change in between and keeping
        # the text saves 1.2 of 2.4 us.
        known = (self.address, self.verdict, self.reason, self.note, self.secrets)
        if self._known != known:
            self._identity = self._encode_identity()
            self._known = known
        # The numbers are numbers by their type: checking again with `:d` would cost 0.1 us for each.
        head = f'"time":"{_now()}","event":{_quote(event)},"conn":{self.conn},"req":{self.req}{self._identity}'
        if event == "decision" and self.verdict == "allow":
            return head
        if not self.duration_ms and self.started:
            self.duration_ms = (time.monotonic() - self.started) * 1000.0
        return (
            f'{head},"status":{self.status},"sent":{self.sent},"received":{self.received}'
            f',"duration_ms":{self.duration_ms:.3f}'
        )

    def _encode_identity(self) -> str:
        """All that the lines of one record say in the same words, but for its numbers."""
        method, host, address, rule = self.method, self.host, self.address, self.rule
        reason, note, sandbox = self.reason, self.note, self.sandbox
        # One test for all of them, and then the C escaper without a Python call around it: 0.3 us less.
        total = len(method) + len(host) + len(address) + len(rule) + len(reason) + len(note) + len(sandbox)
        if total > MAX_TEXT_CHARS:
            method, host, address, rule = _cut(method), _cut(host), _cut(address), _cut(rule)
            reason, note, sandbox = _cut(reason), _cut(note), _cut(sandbox)
        secrets = ",".join(map(_text, self.secrets)) if self.secrets else ""
        return (
            f',"sandbox":{_quote(sandbox)},"jail":{_quote(self.jail)}'
            f',"protocol":{_quote(self.protocol)},"method":{_quote(method)}'
            f',"host":{_quote(host)},"port":{self.port},"address":{_quote(address)}'
            f',"verdict":{_quote(self.verdict)},"rule":{_quote(rule)},"reason":{_quote(reason)}'
            f',"secrets":[{secrets}],"note":{_quote(note)}'
        )


def encode_event(event: str, **fields: str | int | float | None) -> str:
    """The middle of a rare line: start, stop, reload, gap, torn. Not for the path of a request."""
    parts = [f'"time":"{_now()}","event":{_text(event)}']
    for name, value in fields.items():
        if name in _RESERVED:
            raise ValueError(f"{name} is written by the journal")
        if isinstance(value, str):
            parts.append(f"{_text(name)}:{_text(value)}")
        elif isinstance(value, float) and not math.isfinite(value):
            parts.append(f"{_text(name)}:null")  # JSON has neither infinity nor NaN.
        else:
            parts.append(f"{_text(name)}:{json.dumps(value)}")
    return ",".join(parts)
