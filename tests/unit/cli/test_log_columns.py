"""`exeat proxy log`: its columns, and moments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from exeat.audit.reading import stamp
from exeat.cli.logs.rows import ALLOWED, BLOCKED, EVENT, Row, human, parse_since, request_row, utc_seconds
from exeat.cli.logs.table import Table
from exeat.errors import ConfigError


def made(event: str, verdict: str = "allow", conn: int = 1, host: str = "h.test", **more: Any) -> dict[str, Any]:
    return {
        "event": event, "verdict": verdict, "conn": conn, "req": 1, "method": "GET", "host": host, "port": 443,
        "reason": "allowed" if verdict == "allow" else "not-listed", **more,
    }  # fmt: skip


# Columns


def row(host: str = "h.test:443", verdict: str = ALLOWED, why: str = ".h.test") -> Row:
    moved = "1.2k/46M" if verdict == ALLOWED else ""
    return Row(verdict, time.localtime(), "CONNECT", host, why, moved, "200" if moved else "")


LONG = "github.com." + "a" * 120 + ".evil.test:443"


@pytest.mark.parametrize("columns", [10, 40, 63, 64, 80, 100, 140, 500])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """Nothing wraps, and the end of a long host, which says whose it is, stays to be seen."""
    table = Table(columns, has_colours=False)
    rows = [
        row(),
        row(LONG),
        row(LONG, BLOCKED, "not-listed: " + "z" * 300),
        row("x", BLOCKED, "n"),
        row(why="r" * 200),
    ]
    rows.append(Row(EVENT, None, "", "", "e" * 300))
    laid = table.lay_out(rows)
    assert len(laid) == len(rows)
    assert max(map(len, laid)) <= columns
    if columns >= 64:
        assert "l.test:443" in laid[1]
        assert "evil.test:443" in laid[2]


def test_a_host_is_cut_only_where_there_is_no_room() -> None:
    """On a wide terminal, and where there is none, it is whole."""
    host = "telemetry.some-long-name.eu-central-1.vendor.test:443"
    for columns in (None, 160):
        assert host in Table(columns, has_colours=False).lay_out([row(host), row()])[0]
    assert host not in Table(80, has_colours=False).lay_out([row(host), row()])[0]
    assert host in Table(100, has_colours=False).lay_out([row(host, BLOCKED, "not-listed"), row()])[0]


def test_columns_are_aligned_and_stay_so() -> None:
    """Rules begin and bytes end under each other, in one go and in the next."""
    table = Table(140, has_colours=False)
    first = table.lay_out([row("a.test:443"), row("a-longer-one.test:8443")])
    second = table.lay_out([row("b.test:80")])
    assert len({each.index(".h.test") for each in first + second}) == 1
    assert len({each.index("46M") for each in first + second}) == 1


def test_another_day_is_named_once() -> None:
    """On a terminal rows have the time alone, and a line says when the day is not today."""
    old = row()._replace(when=time.gmtime(0))
    laid = Table(80, has_colours=False).lay_out([old, old, row()])
    assert next(each for each in laid if each.startswith("--")) == "-- 1970-01-01 --"
    assert len(laid) == 5


def test_bytes_have_four_characters() -> None:
    """Every number of bytes fits its column."""
    cases = {
        0: "0",
        999: "999",
        1000: "1.0k",
        9949: "9.9k",
        9950: "10k",
        999_499: "999k",
        999_500: "1.0M",
        10**12: "1.0T",
    }
    assert {number: human(number) for number in cases} == cases
    assert all(len(human(10**power * 9)) <= 4 and len(human(10**power - 1)) <= 4 for power in range(5000, 0, -7))


def test_dns_and_addresses() -> None:
    """A lookup is named as one, without a port; an IPv6 address has brackets; other protocols say which they are."""
    assert request_row(made("decision", "deny", protocol="dns", method="A", host="x.test"))[2:4] == ("dns A", "x.test")
    assert request_row(made("decision", host="2001:db8::1")).where == "[2001:db8::1]:443"
    assert request_row(made("decision", "deny", protocol="udp", method="")).method == "udp"


# Moments


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOW = 1_738_333_800.0  # 2025-01-31T14:30:00Z
MOMENTS = {
    "45s": NOW - 45,
    "10m": NOW - 600,
    "2h": NOW - 7200,
    "3d": NOW - 3 * 86400,
    "1w": NOW - 7 * 86400,
    "14:30": NOW - 3600,
    "15:30:00": NOW,
    "15:31": NOW + 60 - 86400,
    "2025-01-31": NOW - 15.5 * 3600,
    "2025-01-31T14:30": NOW - 3600,
    "2025-01-31T14:30Z": NOW,
    "2025-01-31 14:29:59Z": NOW - 1,
    "2025-01-31T14:29:59.123456Z": NOW - 1,
    "2024-02-29T00:00Z": 1_709_164_800.0,
    "2024-07-01T12:00": 1_719_828_000.0,
}


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("text", MOMENTS)
def test_since_understands(text: str) -> None:
    """Ages, times of day, dates, with or without a time, local or UTC, in winter and in summer."""
    assert parse_since(text, NOW) == MOMENTS[text]


@pytest.mark.parametrize(
    "text",
    ["", "10", "m", "-5m", "10 m", "25:00", "12:60", "2025-13-01", "2025-02-30", "2023-02-29", "0001-01-01", "soon",
     "2025-01-31T", "2025-01-31T25:00", "2025-01-31Z", "2030-01-01", "\uff12h", "9999999d", "10m\n"],
)  # fmt: skip
def test_since_refuses(text: str) -> None:
    """What is no time, or lies in the future, is refused with the forms that are understood."""
    with pytest.raises(ConfigError, match="--since") as refused:
        parse_since(text, NOW)
    assert refused.value.expected


def test_stamps_are_read_as_they_are_written() -> None:
    """Every day of four centuries and more, forth and back."""
    for day in range(0, 170_000, 13):
        assert utc_seconds(stamp(day * 86400 + 3661.5)) == day * 86400 + 3661
    assert utc_seconds("2025-01-31T14:30:00.000000") is None
