"""A whole log judged again: which of its decisions another policy would make differently.

Reads line by line and keeps a bounded number of distinct rows, so a log of any size can be replayed. What it says of
itself is checked on the way: a log that was changed is still replayed, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from exeat.audit.parts import LogPlace, open_part, parse
from exeat.audit.verify import Verification, verify_files
from exeat.errors import ConfigError
from exeat.policy.replay import Again, Outcome, Recorded

_MAX_ROWS: Final = 20_000
_MAX_HELD: Final = 10_000
_MAX_JUDGED: Final = 50_000
_REPEATS: Final = re.compile(r"([0-9]{1,9}) more times within ")
_LISTED: Final = (Outcome.ALLOWED, Outcome.DENIED, Outcome.UNKNOWN)

Judge = Callable[[Recorded], Again]


class Row(NamedTuple):
    """Decisions that were all alike, and what becomes of them."""

    host: str
    port: int
    method: str
    protocol: str
    was_allowed: bool
    was_rule: str
    was_reason: str
    now: Again


@dataclass(slots=True)
class Replayed:
    """What a log came to. `unlisted` decisions belong to rows for which there was no room."""

    rows: dict[Row, int] = field(default_factory=dict)
    totals: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    unlisted: int = 0
    not_records: int = 0
    verification: Verification | None = None

    @property
    def decisions(self) -> int:
        """How many decisions the policy could have a say in."""
        return sum(self.totals.values()) - self.totals[Outcome.OTHER]

    @property
    def differences(self) -> int:
        return self.totals[Outcome.ALLOWED] + self.totals[Outcome.DENIED]

    def most_frequent(self, outcome: Outcome) -> list[tuple[Row, int]]:
        found = [(row, count) for row, count in self.rows.items() if row.now.outcome is outcome]
        return sorted(found, key=lambda item: (-item[1], item[0].host, item[0].port, item[0].method))


def replay_log(path: str, judge: Judge) -> Replayed:
    """Judge every decision of a log and its rotated parts, oldest first. Raises ConfigError if it cannot be read."""
    part = open_part(LogPlace(path))  # also refuses what is no file, before anything waits for it
    if part is None:
        raise ConfigError("there is no such log", where=path, expected="an audit log")
    part.close()
    replay = _Replay(judge)
    try:
        verification = verify_files([path], on_line=replay.feed)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(error.filename or path), expected="an audit log"
        ) from None
    return replay.finish(verification)


class _Replay:
    """Follows a log. Where an allowed request led to may come only with its last line, so it is held until then."""

    def __init__(self, judge: Judge) -> None:
        self._judge = lru_cache(maxsize=_MAX_JUDGED)(judge)
        self._held: dict[tuple[object, ...], Recorded] = {}
        self._result = Replayed()
        self._is_whole = True  # the last line has ended

    def feed(self, line: bytes) -> None:
        began, self._is_whole = self._is_whole, line.endswith(b"\n")
        if not began:
            return  # the rest of a line that has been counted
        found = parse(line)
        if found is None:
            self._result.not_records += bool(line.strip())
            return
        event, fields = found.record["event"], found.record
        if event not in ("decision", "end", "repeat"):
            return
        recorded = read_recorded(fields)
        if recorded is None:
            self._result.not_records += 1
        elif event == "decision":
            self._decision(recorded, fields)
        elif event == "end":
            held = self._held.pop(_key(recorded, fields), None)
            if held is not None:
                self._count(held._replace(address=recorded.address))
        else:
            times = _REPEATS.match(str(fields.get("note", "")))
            self._count(recorded, int(times[1]) if times else 1)

    def finish(self, verification: Verification) -> Replayed:
        for held in self._held.values():
            self._count(held)
        self._held.clear()
        self._result.verification = verification
        return self._result

    def _decision(self, recorded: Recorded, fields: dict[str, Any]) -> None:
        if not recorded.allowed or recorded.address:
            self._count(recorded)
            return
        key = _key(recorded, fields)
        if key in self._held:  # of another gateway that writes to the same log
            self._count(self._held.pop(key))
        elif len(self._held) >= _MAX_HELD:
            self._count(self._held.pop(next(iter(self._held))))
        self._held[key] = recorded

    def _count(self, recorded: Recorded, times: int = 1) -> None:
        result = self._result
        again = self._judge(recorded)
        result.totals[again.outcome] += times
        if again.outcome not in _LISTED:
            return
        row = Row(*recorded[:4], recorded.allowed, recorded.rule, recorded.reason, again)
        if row in result.rows or len(result.rows) < _MAX_ROWS:
            result.rows[row] = result.rows.get(row, 0) + times
        else:
            result.unlisted += times


def _key(recorded: Recorded, fields: dict[str, Any]) -> tuple[object, ...]:
    return (str(fields.get("conn")), str(fields.get("req")), recorded.host, recorded.port, recorded.method)


def read_recorded(fields: dict[str, Any]) -> Recorded | None:
    """The decision that a line tells of; None if a field is not what it should be."""
    texts = [fields.get(name) for name in ("host", "method", "protocol", "verdict", "rule", "reason", "address")]
    port = fields.get("port")
    if not all(isinstance(text, str) for text in texts) or not isinstance(port, int) or isinstance(port, bool):
        return None
    host, method, protocol, verdict, rule, reason, address = map(str, texts)
    if verdict not in ("allow", "deny"):
        return None
    return Recorded(
        host=host,
        port=port,
        method=method,
        protocol=protocol,
        allowed=verdict == "allow",
        rule=rule,
        reason=reason,
        address=address,
        policy=str(fields.get("policy", "")),
        jailed=bool(fields.get("jail")),
    )
