"""Records as rows for a person. Whatever a record holds, a row is one line of printable ASCII.

The file is ours, but hosts, methods and notes in it were chosen by those who are locked in, and JSON turns `\\u001b`
back into what a terminal obeys. So no text leaves here unescaped, no field is trusted to have its type, and blanks in
words are escaped too: a host cannot draw columns of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from exeat.cli.screen import in_ascii
from exeat.errors import ConfigError

ALLOWED = "allowed"
BLOCKED = "BLOCKED"
CLOSED = "closed"
EVENT = "event"
TROUBLE = "trouble"

_MAX_CHARS = 1_000
_DNS = "dns"
_LARGEST = 10**21
_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?Z?)?")
_WHEN = "10m, 2h, 3d, 14:30, 2025-01-31, 2025-01-31T14:30 or, in UTC, 2025-01-31T14:30:00Z"


class Row(NamedTuple):
    """One line. For an event `why` is all of it."""

    verdict: str
    when: time.struct_time | None
    method: str
    where: str
    why: str
    moved: str = ""
    status: str = ""


def is_request(record: dict[str, Any]) -> bool:
    return record["event"] in ("decision", "end", "repeat")


def is_allowed(record: dict[str, Any]) -> bool:
    """Whatever does not say so is taken for a denial: none may be missed."""
    return record.get("verdict") == "allow"


def request_row(record: dict[str, Any], *, status: str = "", verdict: str = "") -> Row:
    """A request. `status` and `verdict` replace what the record says: for one without an end, or its late end."""
    method, protocol = _word(record, "method"), _word(record, "protocol")
    is_dns = protocol == _DNS
    if is_dns or not method:
        method = f"{protocol} {method}".strip()
    where = _where(record, with_port=not is_dns)
    note = _sentence(record, "note")
    when = _when(record)
    if not is_allowed(record):
        return Row(BLOCKED, when, method, where, _with_note(_refusal(record), note))
    why = _sentence(record, "rule")
    reason = _sentence(record, "reason")
    if reason not in ("", "allowed"):
        why = f"{why} ({reason})" if why else reason
    if not status:
        number = _number(record, "status", str)
        status = note if number == "0" else f"{number} {note}".rstrip()
    moved = ""
    if "sent" in record or "received" in record:
        moved = f"{_number(record, 'sent', human)}/{_number(record, 'received', human)}"
    return Row(verdict or ALLOWED, when, method, where, why, moved, status)


def event_row(record: dict[str, Any]) -> Row:
    """Anything that is no request: what happened to the run, or to the log itself."""
    name = record["event"]
    told = _EVENTS.get(name)
    text = told(record) if told is not None else _with_note(_text(name), _sentence(record, "note"))
    return Row(TROUBLE if is_trouble(record) else EVENT, _when(record), "", "", text)


def is_trouble(record: dict[str, Any]) -> bool:
    """Something is missing from the log, or went wrong: to be seen in every view."""
    return record["event"] in _TROUBLE


def human(count: int) -> str:
    """A number of bytes in at most four characters."""
    if count < 1000:
        return str(count)
    if count >= _LARGEST:
        return "huge"
    value = float(count)
    for unit in "kMGTPEZ":
        value /= 1000
        if value < 9.95:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
    return "huge"


def _refusal(record: dict[str, Any]) -> str:
    verdict, rule = record.get("verdict"), _sentence(record, "rule")
    reason = _sentence(record, "reason") or "denied"
    if verdict != "deny":
        reason = f"{reason} (the record says {_text(verdict)})"
    return f"{reason} {rule}" if rule else reason


def _with_note(text: str, note: str) -> str:
    return f"{text}: {note}" if note else text


def _where(record: dict[str, Any], *, with_port: bool) -> str:
    host, port = _word(record, "host") or "-", record.get("port")
    if ":" in host:
        host = f"[{host}]"
    if not with_port or (port == 0 and isinstance(port, int)):
        return host
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
    return f"{host}:{port}" if is_port else f"{host}:?"


def _when(record: dict[str, Any]) -> time.struct_time | None:
    stamp = record.get("time")
    seconds = utc_seconds(stamp) if isinstance(stamp, str) and len(stamp) < 40 else None
    return None if seconds is None else time.localtime(seconds)


def _number(record: dict[str, Any], name: str, shown: Callable[[int], str]) -> str:
    value = record.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return "?"
    return shown(value) if value < _LARGEST else "huge"


def _sentence(record: dict[str, Any], name: str) -> str:
    """Words with one blank between them: more could pass for a column."""
    return " ".join(_text(record.get(name, "")).split())


def _word(record: dict[str, Any], name: str) -> str:
    return _text(record.get(name, "")).replace(" ", "\\x20")


def _text(value: object) -> str:
    if not isinstance(value, str):
        return "?"
    # Cut before it is escaped: a value may fill its whole line.
    return in_ascii(value if len(value) <= _MAX_CHARS else value[:_MAX_CHARS] + "...")


def _count(record: dict[str, Any], name: str, one: str, many: str) -> str:
    number = _number(record, name, str)
    return f"{number} {one if number == '1' else many}"


_EVENTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "start": lambda record: (
        f"started: jail {_sentence(record, 'jail') or 'none'}, {_count(record, 'rules', 'rule', 'rules')}"
    ),
    "stop": lambda record: f"ended: {_count(record, 'connections', 'connection', 'connections')}",
    "reload": lambda record: (
        f"list changed: {_count(record, 'rules', 'rule', 'rules')}"
        f", {_count(record, 'cut', 'connection', 'connections')} closed"
    ),
    "grant": lambda record: f"allowed for this run, by {_sentence(record, 'by') or '?'}: {_sentence(record, 'rule')}",
    "limit": lambda record: f"{_count(record, 'rejected', 'connection', 'connections')} refused: too many at once",
    "gap": lambda record: (
        f"the log could not be written: {_count(record, 'lost', 'line', 'lines')} lost"
        f", {_count(record, 'refused', 'request', 'requests')} refused"
    ),
    "torn": lambda record: f"part of a line stands before this one: {_count(record, 'bytes', 'byte', 'bytes')}",
    "foreign": lambda record: f"not written by exeat, before this line: {_count(record, 'bytes', 'byte', 'bytes')}",
    "cut": lambda record: "lines were cut off before this one; exeat audit verify tells more",
    "reload-failed": lambda record: f"list not used: {_sentence(record, 'note')}",
    "rotate_failed": lambda record: f"the log could not be rotated: {_sentence(record, 'error')}",
    "secret-not-renewed": lambda record: (
        f"secret {_sentence(record, 'secret')} not renewed: {_sentence(record, 'note')}"
    ),
}
_TROUBLE = frozenset(("limit", "gap", "torn", "foreign", "cut", "reload-failed", "rotate_failed", "secret-not-renewed"))


def parse_since(text: str, now: float) -> float:
    """The unix time of what stands after `--since`. Times are local unless they end in Z. Raises ConfigError."""
    if ago := _AGO.fullmatch(text):
        return max(now - int(ago[1]) * _UNITS[ago[2]], 0.0)
    clock = _CLOCK.fullmatch(text)
    moment = _clock_time(clock, now) if clock else _date_time(text)
    if moment is None:
        raise ConfigError(f"{text!r} is not a time", where="--since", expected=_WHEN)
    if moment > now:
        raise ConfigError(f"{text!r} is in the future", where="--since", expected="a time in the past")
    return moment


def utc_seconds(stamp: str) -> int | None:
    """The unix time of a record's stamp, in whole seconds; None if it is none."""
    moment = _date_time(stamp) if stamp.endswith("Z") else None
    return None if moment is None else int(moment)


def _clock_time(clock: re.Match[str], now: float) -> float | None:
    hour, minute, second = (int(each or 0) for each in clock.groups())
    try:
        moment = datetime.fromtimestamp(now).replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        return None
    if moment.timestamp() > now:  # 23:50, said at 00:10
        moment -= timedelta(days=1)
    return moment.timestamp()


def _date_time(text: str) -> float | None:
    """None also for what lies before 1970."""
    try:
        moment = datetime.fromisoformat(text).replace(microsecond=0).timestamp() if _DATE.fullmatch(text) else -1.0
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment >= 0 else None
