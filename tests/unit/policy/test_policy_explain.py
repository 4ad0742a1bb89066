"""Explanations: the verdict in words, with the line that gave it and what would change it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import get_args

import pytest

from exeat.policy import (
    Decision,
    Source,
    Target,
    build_policy,
    canonical_host,
    decide,
    judge_address,
    parse_document,
    parse_rule,
    rule_to_allow,
)
from exeat.policy.explain import describe, explain
from exeat.reasons import PolicyReason

POLICY = build_policy(
    parse_document(
        'allow = [\n "good.test",\n "m.test methods=GET",\n "p.test paths=/a",\n "0.0.0.0/0"]\ndeny = ["evil.test"]\n',
        "policy.toml",
    ).rules
)


@pytest.mark.parametrize(
    ("host", "port", "method", "path", "where", "sentence", "change"),
    [
        ("GOOD.test.", 443, None, None, "policy.toml:2:3", 'allowed by the rule "good.test"', ""),
        ("nope.test", 443, None, None, "", "No rule lists nope.test", 'add the rule "nope.test"'),
        ("nope.test", 22, None, None, "", "No rule lists nope.test", 'add the rule "nope.test:22"'),
        ("good.test", 22, None, None, "policy.toml:2:3", "not port 22", 'add the rule "good.test:22"'),
        ("[2606:4700::1]", 22, None, None, "", "No rule lists the address", 'add the rule "[2606:4700::1]:22"'),
        ("10.0.0.1", 80, None, None, "policy.toml:5:3", "not on the public", 'private to the rule "0.0.0.0/0"'),
        ("evil.test", 80, None, None, "policy.toml:6:10", "deny beats allow", 'remove the rule "!evil.test"'),
        ("m.test", 80, "POST", "/", "policy.toml:3:3", "method 'POST'", "methods="),
        ("p.test", 80, "GET", "/b", "policy.toml:4:3", "path '/b'", "paths="),
        ("p.test", 443, None, None, "policy.toml:4:3", "tunnel", "interception"),
    ],
)
def test_explanation(
    host: str, port: int, method: str | None, path: str | None, where: str, sentence: str, change: str
) -> None:
    """Each reason says which rule, where it is written and what to do."""
    target = Target(canonical_host(host), port, method, path)
    found = explain(POLICY, target)
    assert found.decision == decide(POLICY, target)
    assert found.where == where
    assert sentence in found.sentence
    assert change in found.change
    assert bool(found.change) is not found.decision.allowed
    assert (found.host, found.port) == (canonical_host(host).text, port)


def test_target_text() -> None:
    """The target reads as host and port, with the request in front and its path behind when there is one."""
    assert explain(POLICY, Target(canonical_host("::1"), 80)).target == "[::1]:80"
    asked = Target(canonical_host("good.test"), 80, "GET", "/a\n")
    assert explain(POLICY, asked).target == "GET good.test:80/a\\n"


@pytest.mark.parametrize("reason", get_args(PolicyReason))
def test_every_reason_has_words(reason: PolicyReason) -> None:
    """No reason falls through, and no sentence carries a raw control character."""
    rule = parse_rule("good.test", Source("x"))
    decision = Decision(rule, reason)
    sentence, change = describe(decision, Target(canonical_host("good.test"), 1, "G\nT", "/\x1b"))
    assert sentence.isprintable()
    assert change.isprintable()


@pytest.mark.parametrize(
    ("host", "port", "rule"),
    [
        ("evil.test", 80, "evil.test"),
        ("evil.test", 443, "evil.test"),
        ("evil.test", 22, "evil.test:22"),
        ("[::1]", 8080, "[::1]:8080"),
        ("1.2.3.4", 443, "1.2.3.4"),
    ],
)
def test_suggested_rule_is_short_and_works(host: str, port: int, rule: str) -> None:
    """The rule that a refusal suggests does allow what was refused."""
    target = Target(canonical_host(host), port)
    assert rule_to_allow(target) == rule
    assert decide(build_policy([parse_rule(rule, Source("x"))]), target).allowed


def test_private_suggestion_works() -> None:
    """For an inside address the suggestion plus ` private` is enough."""
    target = Target(canonical_host("db.test"), 5432)
    policy = build_policy([parse_rule(rule_to_allow(target) + " private", Source("x"))])
    assert judge_address(policy, decide(policy, target), target, ip_address("10.0.0.1"), own=False).allowed
