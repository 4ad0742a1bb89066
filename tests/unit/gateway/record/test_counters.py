"""The summary's texts: each refusal with what would let it through, and nothing that a terminal could stumble over."""

from __future__ import annotations

import pytest

from exeat.gateway.record.counters import (
    Counters,
    Entry,
    KeptList,
    describe_allowed,
    describe_denied,
    describe_failed,
    is_failure,
)
from exeat.policy import Policy
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Source
from exeat.sources import make_policy

NOTHING = make_policy([])


def denied(*blocked: tuple[str, int, str], policy: Policy = NOTHING, kept: KeptList | None = None) -> list[Entry]:
    counters = Counters()
    for host, port, reason in blocked:
        counters.block(host, port, reason)
    return describe_denied(counters, policy, kept, own_names={"builder", "builder.local"})


@pytest.mark.parametrize(
    ("blocked", "where", "rule", "advice"),
    [
        (("evil.test", 443, "not-listed"), "evil.test:443", "evil.test", "--allow evil.test"),
        (
            ("git.test", 0, "not-listed"),
            "git.test",
            "git.test",
            "--allow git.test; for another protocol: --allow git.test:PORT",
        ),
        (("evil.test", 22, "not-listed"), "evil.test:22", "evil.test:22", "--allow evil.test:22"),
        (("good.test", 22, "port-not-listed"), "good.test:22", "good.test:22", "--allow good.test:22"),
        (("203.0.113.9", 80, "address-not-listed"), "203.0.113.9:80", "203.0.113.9", "--allow 203.0.113.9"),
        (
            ("2001:db8::1", 443, "address-not-listed"),
            "[2001:db8::1]:443",
            "[2001:db8::1]",
            "--allow '[2001:db8::1]'",
        ),
        (
            ("db.test", 5432, "private-address"),
            "db.test:5432",
            "db.test:5432 private",
            '--allow "db.test:5432 private"',
        ),
        (
            ("good.test", 443, "sni-mismatch"),
            "good.test:443",
            "good.test allow_sni_mismatch",
            'the TLS inside names another host; to allow that: --allow "good.test allow_sni_mismatch"',
        ),
        (("good.test", 443, "protocol-not-carried"), "good.test:443", "", "only TCP and DNS are carried"),
        (("good.test", 443, "audit-failed"), "good.test:443", "", "the audit log could not be written"),
        (("localhost", 18080, "not-listed"), "localhost:18080", "localhost:18080", "--allow localhost:18080"),
        (("127.0.0.1", 18080, "address-not-listed"), "127.0.0.1:18080", "localhost:18080", "--allow localhost:18080"),
        (("::1", 80, "private-address"), "[::1]:80", "localhost:80", "--allow localhost:80"),
    ],
)
def test_each_reason_has_its_advice(blocked: tuple[str, int, str], where: str, rule: str, advice: str) -> None:
    (entry,) = denied(blocked)
    assert (entry.where, entry.times, entry.rule, entry.advice) == (where, 1, rule, advice)
    assert not entry.is_noise


def test_a_rule_that_is_advised_is_a_rule_and_allows() -> None:
    """The control for the advice: what it says to add can be added."""
    (entry,) = denied(("good.test", 443, "sni-mismatch"))
    assert parse_rule(entry.rule, Source("--allow")).allow_sni_mismatch
    (entry,) = denied(("db.test", 5432, "private-address"))
    assert parse_rule(entry.rule, Source("--allow")).private


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 0),
        ("8.8.8.8.in-addr.arpa", 0),
        ("1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", 0),
        ("builder", 0),
        ("builder.local", 0),
    ],
)
def test_what_nobody_would_allow_is_not_advised(host: str, port: int) -> None:
    (entry,) = denied((host, port, "not-listed"))
    assert (entry.is_noise, entry.rule, entry.advice) == (True, "", "")


def test_a_connection_to_such_a_name_is_no_noise() -> None:
    """A look-up is what programs do by themselves. A connection is meant."""
    (entry,) = denied(("builder", 22, "not-listed"))
    assert entry.advice == "--allow builder:22"


def test_a_denial_is_named_with_where_it_stands() -> None:
    policy = make_policy(["!bad.test", "bad.test"])
    (entry,) = denied(("bad.test", 443, "denied-by-rule"), policy=policy)
    assert (entry.rule, entry.advice) == ("", f'denied by "!bad.test" ({policy.rules[0].source})')
    assert "--allow" not in entry.advice


def test_a_denial_that_a_sandbox_keeps_says_how_to_take_it_back() -> None:
    policy = make_policy(["!bad.test"])
    kept = KeptList("work", policy.rules[0].source.name)
    (entry,) = denied(("bad.test", 443, "denied-by-rule"), policy=policy, kept=kept)
    assert entry.advice.endswith("; exeat proxy allow bad.test --name work takes it back")


def test_a_denial_of_what_a_name_leads_to_is_not_laid_at_another_rule() -> None:
    (entry,) = denied(("good.test", 443, "denied-by-rule"), policy=make_policy(["good.test", "!10.0.0.0/8"]))
    assert entry.advice == "denied by a rule"


def test_the_most_frequent_come_first() -> None:
    found = denied(("a.test", 443, "not-listed"), *[("b.test", 443, "not-listed")] * 3)
    assert [(entry.where, entry.times) for entry in found] == [("b.test:443", 3), ("a.test:443", 1)]


def test_what_a_name_contains_never_reaches_a_terminal() -> None:
    (entry,) = denied(("\x1b]0;x\x07é\u202e.test", 0, "not-listed"))
    assert entry.where == "?]0;x???.test"
    assert entry.advice.isprintable()
    counters = Counters()
    counters.fail("\x1b[2J.test", 1, "dns_error")
    assert describe_failed(counters)[0].where == "?[2J.test:1"


def test_failures_are_grouped_by_what_they_mean() -> None:
    counters = Counters()
    for error in ("upstream-lost", "connection_terminated", "upstream-closed-early"):
        counters.fail("good.test", 443, error)
    counters.fail("nope.test", 443, "dns_error")
    found = [(entry.where, entry.times, entry.reason, entry.advice) for entry in describe_failed(counters)]
    assert found == [
        ("good.test:443", 3, "reset", "the server dropped the connection"),
        ("nope.test:443", 1, "does-not-resolve", "the name does not resolve"),
    ]


def test_a_client_that_leaves_is_no_failure() -> None:
    assert not any(is_failure(note) for note in ("", "client-left", "client-reset", "revoked", "gateway-stopped"))


def test_any_number_of_hosts_takes_bounded_memory() -> None:
    counters = Counters()
    for number in range(5_000):
        counters.block(f"{number}.test", 443, "not-listed")
        counters.fail(f"{number}.test", 443, "dns_error")
        counters.decided("allow", "allowed", f"{number}.test", 443)
    for counted in (counters.blocked, counters.failed, counters.allowed):
        assert len(counted) <= 1_001
        assert sum(counted.values()) == 5_000
    assert len(describe_allowed(counters)) == 1_000
