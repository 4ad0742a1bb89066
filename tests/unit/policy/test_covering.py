"""Which rule lies inside which. Checked by table, and against the verdicts themselves."""

from __future__ import annotations

from itertools import product

import pytest

from exeat.policy import Source, Target, build_policy, canonical_host, decide, parse_rule
from exeat.policy.rule import (
    ALL_PORTS,
    WEB_PORTS,
    Rule,
    allows_all_of,
    covers,
    denial_covers,
    denial_meets,
    denies_all_of,
    meet,
    ports_cover,
    ports_meet,
    ports_without,
)

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
    """Ranges inside each other and next to each other."""
    assert ports_cover(ALL_PORTS, WEB_PORTS)
    assert not ports_cover(WEB_PORTS, ALL_PORTS)
    assert not ports_cover(WEB_PORTS, ((80, 81),))
    assert ports_cover(((80, 90),), ((85, 90),))
    assert ports_meet(((80, 90),), WEB_PORTS)
    assert not ports_meet(((81, 442),), WEB_PORTS)
    assert ports_without(ALL_PORTS, WEB_PORTS) == ((1, 79), (81, 442), (444, 65535))
    assert ports_without(WEB_PORTS, ((443, 443),)) == ((80, 80),)
    assert ports_without(((80, 90),), ((70, 95),)) == ()
    assert ports_without(((80, 90),), ((91, 95), (1, 79))) == ((80, 90),)


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


@pytest.mark.parametrize(
    ("deny", "other", "is_covered", "is_met"),
    [
        ("!*", "10.0.0.1", True, True),
        ("!*", "a.test", True, True),
        ("!a.test", ".a.test", False, True),
        ("!.a.test", "a.test", True, True),
        ("!.a.test", "b.test", False, False),
        ("!.a.test", "10.0.0.1", False, False),
        ("!10.0.0.1", "a.test", False, True),  # it may lead there
        ("!10.0.0.1", "* force", False, True),
        ("!10.0.0.1", "10.0.0.0/8", False, True),
        ("!10.0.0.0/8", "10.0.0.1", True, True),
        ("!10.0.0.1", "10.0.0.2", False, False),
        ("!10.0.0.1", "[64:ff9b::a00:1]", False, True),  # it carries that address
        ("!10.0.0.1", "[64:ff9b::/96]", False, True),
        ("![64:ff9b::a00:1]", "10.0.0.1", False, False),
    ],
)
def test_how_far_a_denial_reaches(deny: str, other: str, is_covered: bool, is_met: bool) -> None:
    """Further than the same pattern in a rule that allows: wider is safer."""
    assert denial_covers(rule(deny).pattern, rule(other).pattern) is is_covered
    assert denial_meets(rule(deny).pattern, rule(other).pattern) is is_met
