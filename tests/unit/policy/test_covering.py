"""Which rule lies inside which. Checked by table, and against the verdicts themselves."""

from __future__ import annotations

from itertools import product

import pytest

from exeat.policy import Source, Target, build_policy, canonical_host, decide, parse_rule
from exeat.policy.covering import allows_all_of, covers, denies_all_of, meet, ports_cover, ports_meet
from exeat.policy.rule import ALL_PORTS, WEB_PORTS, Rule

HOSTS = [
    "test", "a.test", "b.a.test", "c.b.a.test", "x.a.test", "ba.test", "b.test", "other.name",
    "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.1.0.1", "192.0.2.1", "8.8.8.8", "[::1]", "[fd00::1]",
]  # fmt: skip
PATTERNS = [
    "a.test", ".a.test", "*.a.test", "b.a.test", ".b.a.test", "*.b.a.test", "ba.test", ".test force", "* force",
    "10.0.0.1", "10.0.0.0/31", "10.0.0.0/8", "0.0.0.0/0 private", "[::1]", "[::/0] private",
]  # fmt: skip


def rule(text: str) -> Rule:
    return parse_rule(text, Source("test"))


def reached(text: str) -> set[str]:
    """The hosts that this rule alone allows."""
    policy = build_policy([rule(text)])
    return {host for host in HOSTS if decide(policy, Target(canonical_host(host), 443)).allowed}


def test_covers_and_meets_say_what_verdicts_say() -> None:
    """Each pattern against each: one covers the other if it reaches all that the other reaches; they meet if a host is
    reached by both."""
    hosts = {text: reached(text) for text in PATTERNS}
    assert all(hosts.values())
    for one, other in product(PATTERNS, repeat=2):
        assert covers(rule(one).pattern, rule(other).pattern) == (hosts[other] <= hosts[one]), (one, other)
        assert meet(rule(one).pattern, rule(other).pattern) == bool(hosts[one] & hosts[other]), (one, other)


def test_ports() -> None:
    """Ranges inside each other and beside each other."""
    assert ports_cover(ALL_PORTS, WEB_PORTS)
    assert not ports_cover(WEB_PORTS, ALL_PORTS)
    assert not ports_cover(WEB_PORTS, ((80, 81),))
    assert ports_cover(((80, 90),), ((85, 90),))
    assert ports_meet(((80, 90),), WEB_PORTS)
    assert not ports_meet(((81, 442),), WEB_PORTS)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (".a.test", "a.test", True),
        (".a.test", ".a.test", True),
        (".a.test", "a.test:22", False),
        (".a.test:*", "a.test:22", True),
        (".a.test methods=GET", "a.test", False),
        (".a.test", "a.test methods=GET", True),
        (".a.test methods=GET", "a.test methods=GET", True),
        (".a.test", "a.test private", False),
        (".a.test private", "a.test", True),
        (".a.test", "a.test max_upload=1MB", False),
        (".a.test", "a.test no-intercept", False),
        (".a.test", "a.test allow_sni_mismatch", False),
        ("* force", "10.0.0.1", False),
    ],
)
def test_when_a_rule_is_needless(wide: str, narrow: str, expected: bool) -> None:
    """Only if the wider one lets everything through in the same way."""
    assert allows_all_of(rule(wide), rule(narrow)) is expected


@pytest.mark.parametrize(
    ("deny", "other", "expected"),
    [
        ("!.test", "a.test", True),
        ("!a.test", ".a.test", False),
        ("!.a.test:443", ".a.test", False),
        ("!.a.test methods=POST", "a.test", False),
        ("!.a.test methods=POST", "a.test methods=POST", True),
        ("!*:*", "10.0.0.1:22", True),
        ("!*", "10.0.0.1:22", False),
    ],
)
def test_when_nothing_is_left(deny: str, other: str, expected: bool) -> None:
    """A deny rule of everything is about addresses as well, as in `decide`."""
    assert denies_all_of(rule(deny), rule(other)) is expected
