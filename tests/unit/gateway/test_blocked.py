"""The summary's texts: each refusal with what would let it through, and nothing that a terminal could stumble over."""

from __future__ import annotations

import pytest

from exeat.gateway.blocked import describe_blocked
from exeat.gateway.counters import Counters


def described(*blocked: tuple[str, int, str]) -> list[tuple[object, object, object]]:
    counters = Counters()
    for host, port, reason in blocked:
        counters.block(host, port, reason)
    return [(entry["where"], entry["count"], entry["advice"]) for entry in describe_blocked(counters)]


@pytest.mark.parametrize(
    ("blocked", "where", "advice"),
    [
        (("evil.test", 443, "not-listed"), "evil.test:443", "--allow evil.test"),
        (("evil.test", 0, "not-listed"), "evil.test", "--allow evil.test"),
        (("evil.test", 22, "not-listed"), "evil.test:22", "--allow evil.test:22"),
        (("good.test", 22, "port-not-listed"), "good.test:22", "--allow good.test:22"),
        (("203.0.113.9", 80, "address-not-listed"), "203.0.113.9:80", "--allow 203.0.113.9"),
        (("2001:db8::1", 443, "address-not-listed"), "[2001:db8::1]:443", "--allow '[2001:db8::1]'"),
        (("db.test", 5432, "private-address"), "db.test:5432", '--allow "db.test:5432 private"'),
        (("bad.test", 443, "denied-by-rule"), "bad.test:443", "denied by a rule"),
        (("good.test", 443, "sni-mismatch"), "good.test:443", "sni-mismatch"),
        (("good.test", 443, "protocol-not-carried"), "good.test:443", "only TCP and DNS are carried"),
        (("", 0, "malformed"), "(no host)", "malformed"),
    ],
)
def test_each_reason_has_its_advice(blocked: tuple[str, int, str], where: str, advice: str) -> None:
    assert described(blocked) == [(where, 1, advice)]


def test_the_most_frequent_come_first() -> None:
    found = described(("a.test", 443, "not-listed"), *[("b.test", 443, "not-listed")] * 3)
    assert [(where, count) for where, count, _ in found] == [("b.test:443", 3), ("a.test:443", 1)]


def test_what_a_name_contains_never_reaches_a_terminal() -> None:
    ((where, _, advice),) = described(("\x1b]0;x\x07é\u202e.test", 0, "not-listed"))
    assert where == "?]0;x???.test"
    assert str(advice).isprintable()


def test_any_number_of_hosts_takes_bounded_memory() -> None:
    counters = Counters()
    for number in range(5_000):
        counters.block(f"{number}.test", 443, "not-listed")
    assert len(counters.blocked) <= 1_001
    assert sum(int(str(entry["count"])) for entry in describe_blocked(counters)) == 5_000
