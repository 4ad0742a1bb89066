"""Selects the lines of a log that make a row: one for each request, every denial, and notable events.

An allowed request has two lines, `decision` and `end`, and gets one row. They belong together by their numbers.
Several gateways may use the same ones in one log, and each run starts over: so all else that identifies a request must
agree too, and one end stands for one decision. Where even that agrees, the rows look alike. A denial is never joined
with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from exeat.audit.parts import Line
from exeat.cli.logs.rows import CLOSED, Row, event_row, is_allowed, is_request, is_trouble, request_row

_MOST_OPEN = 50_000
_QUIET_EVENTS = frozenset(("stop", "rotate", "rotated", "secret-renewed"))
_BETWEEN_FOLLOWED = frozenset(("start", "stop", "reload", "grant"))
_IDENTITY = ("conn", "req", "sandbox", "protocol", "method", "host", "port")

_Key = tuple[object, ...]


def is_chosen(record: dict[str, Any], *, is_blocked_only: bool) -> bool:
    """Whether a line belongs to the view at all: everything, or what was blocked and what went wrong."""
    if not is_blocked_only:
        return True
    return not is_allowed(record) if is_request(record) else is_trouble(record)


def is_surely_allowed(raw: bytes) -> bool:
    """Whether a line is no denial, seen without decoding it. Quotes in values are escaped: what is found is a key."""
    return b'"verdict":"allow"' in raw and b'"deny"' not in raw


class Backwards:
    """Chooses among lines that come newest first. For one pass."""

    def __init__(self, *, is_blocked_only: bool) -> None:
        self._is_blocked_only = is_blocked_only
        self._ends: dict[_Key, int] = {}
        self._wants_start = True  # of the newest run, and of every run that has something to show

    def wants(self, record: dict[str, Any]) -> bool:
        if not is_chosen(record, is_blocked_only=self._is_blocked_only):
            return False
        if record["event"] == "start":
            wanted, self._wants_start = self._wants_start, False
            return wanted
        if not is_request(record):
            if record["event"] in _QUIET_EVENTS:
                return False
        elif is_allowed(record):
            key, event = _key(record), record["event"]
            if event == "end":
                self._ends[key] = self._ends.get(key, 0) + 1
            elif event == "decision" and key in self._ends:
                self._ends[key] -= 1
                if not self._ends[key]:
                    del self._ends[key]
                return False
        self._wants_start = True
        return True


def rows_of(lines: Iterable[Line], *, open_word: str) -> list[Row]:
    """Rows for lines that were chosen backwards: a decision among them has no end."""
    return [_row(line.record, open_word) for line in lines]


def rows_since(lines: Iterable[Line], *, is_blocked_only: bool, open_word: str) -> Iterator[Row]:
    """Rows for all lines from some moment on, as they come. Requests without an end are the last."""
    under_way = _Open()
    start: Row | None = None
    for line in lines:
        record = line.record
        if not is_chosen(record, is_blocked_only=is_blocked_only):
            continue
        if record["event"] == "start":
            start = event_row(record)
            continue
        if not is_request(record):
            if record["event"] in _QUIET_EVENTS:
                continue
        elif is_allowed(record):
            if record["event"] == "decision":
                for old in under_way.add(record):
                    yield _row(old, open_word)
                continue
            if record["event"] == "end":
                under_way.remove(record)
        if start is not None:
            yield start
            start = None
        yield _row(record, open_word)
    if start is not None:
        yield start
    for old in under_way.all():
        yield _row(old, open_word)


class Live:
    """Rows for what is added to a log while the user watches.

    An allowed request waits for one look: if it has ended by then it is one row. Else it is shown as open, and once
    more when it is closed.
    """

    def __init__(self, *, is_blocked_only: bool) -> None:
        self._is_blocked_only = is_blocked_only
        self._waiting = _Open()
        self._shown = _Open()

    def rows(self, lines: Iterable[Line]) -> list[Row]:
        """Rows for what came since the last look."""
        rows: list[Row] = []
        waited, self._waiting = self._waiting, _Open()
        for line in lines:
            record = line.record
            if not is_request(record):
                is_wanted = record["event"] in _BETWEEN_FOLLOWED or is_trouble(record)
                if is_wanted or not (self._is_blocked_only or record["event"] in _QUIET_EVENTS):
                    rows.append(event_row(record))
            elif not is_allowed(record):
                rows.append(request_row(record))
            elif self._is_blocked_only:
                continue
            elif record["event"] == "decision":
                self._waiting.add(record)
            elif waited.remove(record) or self._waiting.remove(record) or not self._shown.remove(record):
                rows.append(request_row(record))
            else:
                rows.append(request_row(record, verdict=CLOSED))
        before = list(waited.all())
        for record in before:
            self._shown.add(record)
        return [request_row(record, status="open") for record in before] + rows


class _Open:
    """Allowed requests whose end has not been seen. Those that never get one must not fill the memory."""

    def __init__(self) -> None:
        self._records: dict[_Key, list[dict[str, Any]]] = {}
        self._count = 0

    def add(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the oldest ones if they have become too many."""
        self._records.setdefault(_key(record), []).append(record)
        self._count += 1
        if self._count <= _MOST_OPEN:
            return []
        dropped = self._records.pop(next(iter(self._records)))
        self._count -= len(dropped)
        return dropped

    def remove(self, end: dict[str, Any]) -> bool:
        """Take the decision of this end out. Whether there was one."""
        key = _key(end)
        same = self._records.get(key)
        if not same:
            return False
        same.pop()
        self._count -= 1
        if not same:
            del self._records[key]
        return True

    def all(self) -> Iterator[dict[str, Any]]:
        for same in self._records.values():
            yield from same


def _row(record: dict[str, Any], open_word: str) -> Row:
    if not is_request(record):
        return event_row(record)
    is_open = is_allowed(record) and record["event"] == "decision"
    return request_row(record, status=open_word if is_open else "")


def _key(record: dict[str, Any]) -> _Key:
    values = (record.get(name) for name in _IDENTITY)
    return tuple(value if isinstance(value, (str, int, float)) else None for value in values)
