"""Encoding: whatever a sandbox chooses as text, the result is one line that says exactly that."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exeat.audit.chain import GENESIS, parse_line, seal_lines
from exeat.audit.record import CUT_MARK, MAX_TEXT_CHARS, Record, encode_event

IDENTITY = ["conn", "req", "sandbox", "jail", "protocol", "method", "host", "port", "address"]
JUDGED = ["verdict", "rule", "reason", "secrets", "note"]
OUTCOME = ["status", "sent", "received", "duration_ms"]
# Surrogates too: a header decoded with surrogateescape can carry them.
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=400)


def decode(body: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads("{" + body + "}")
    return decoded


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + CUT_MARK


@given(st.lists(any_text, min_size=8, max_size=8), st.integers(0, 2**63), st.sampled_from(["decision", "end"]))
def test_any_text_in_any_field_gives_one_ascii_line_that_reads_back_unchanged(
    texts: list[str], number: int, event: str
) -> None:
    """Attacker-chosen text can neither forge a line nor reach a terminal (J3)."""
    method, host, address, rule, reason, note, sandbox, secret = texts
    record = Record(conn=number, method=method, host=host, address=address, rule=rule, reason=reason)
    record.note, record.sandbox, record.secrets = note, sandbox, (secret,)
    (line,), _ = seal_lines([record.encode(event) + ',"policy":""'], "f" + "0" * 16, 0, GENESIS)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert parse_line(line) is not None
    read = json.loads(line)
    assert read["conn"] == number
    for name in ("method", "host", "address", "rule", "reason", "note", "sandbox"):
        assert read[name] == cut(getattr(record, name))
    assert read["secrets"] == [cut(secret)]


@given(st.dictionaries(st.sampled_from(["why", "path", "lost"]), st.one_of(any_text, st.integers(), st.none())))
def test_any_value_in_a_rare_event_reads_back_unchanged(fields: dict[str, str | int | None]) -> None:
    """Rare events get the same treatment as requests."""
    read = decode(encode_event("reload", **fields))
    for name, value in fields.items():
        assert read[name] == (cut(value) if isinstance(value, str) else value)


@given(any_text)
@example("reload-failed")
def test_any_name_of_an_event_makes_a_line_that_the_chain_knows(event: str) -> None:
    """A line that we wrote must never look foreign because of what it is called."""
    for body in (encode_event(event), Record().encode(event)):
        (line,), head = seal_lines([body + ',"policy":""'], "f" + "0" * 16, 0, GENESIS)
        parsed = parse_line(line)
        assert parsed is not None
        assert json.loads(f'"{parsed.event}"') == json.loads(line)["event"]
        assert parsed.stated == head


@pytest.mark.parametrize(
    ("event", "verdict", "expected"),
    [
        ("decision", "allow", IDENTITY + JUDGED),
        ("decision", "deny", IDENTITY + JUDGED + OUTCOME),
        ("end", "allow", IDENTITY + JUDGED + OUTCOME),
    ],
)
def test_keys_come_in_a_fixed_order(event: str, verdict: str, expected: list[str]) -> None:
    """Only an allowed decision has no outcome: it is written before anything is dialled."""
    assert list(decode(Record(verdict=verdict).encode(event))) == ["time", "event", *expected]


def test_a_record_denies_unless_told_otherwise() -> None:
    """A field that was never filled in must not read as permission."""
    assert decode(Record().encode("decision"))["verdict"] == "deny"


def test_time_is_utc_with_microseconds_and_follows_the_clock() -> None:
    """The cached prefix of the second is never used for another second."""
    before = time.time()
    stamp = decode(encode_event("start"))["time"]
    after = time.time()
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})Z", stamp)
    assert found
    import calendar

    read = calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) + int(found[2]) / 1e6
    assert before - 0.001 <= read <= after + 0.001


def test_time_prefix_changes_with_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stamps around the turn of a second differ in the second."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_999_999_999)
    assert decode(encode_event("a"))["time"] == "2023-11-14T22:13:20.999999Z"
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_001_000_000_000)
    assert decode(encode_event("a"))["time"] == "2023-11-14T22:13:21.000000Z"


def test_duration_is_taken_once_from_the_start() -> None:
    """A line that needs the duration computes it; a value set by the gateway is kept."""
    record = Record(started=time.monotonic() - 1.0)
    assert decode(record.encode("end"))["duration_ms"] >= 1000.0
    record.duration_ms = 12.5
    assert decode(record.encode("end"))["duration_ms"] == 12.5


def test_reserved_names_are_refused() -> None:
    """An event cannot carry a second `hash` or `seq` that a reader might believe."""
    for name in ("seq", "chain", "time", "policy", "hash"):
        with pytest.raises(ValueError, match="written by the journal"):
            encode_event("start", **{name: "x"})


def test_numbers_that_json_lacks_become_null() -> None:
    """A log line must be readable by strict JSON readers."""
    read = decode(encode_event("x", a=float("nan"), b=float("inf"), c=1.5))
    assert (read["a"], read["b"], read["c"]) == (None, None, 1.5)
