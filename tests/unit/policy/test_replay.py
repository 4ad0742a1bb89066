"""Recorded decisions judged again: what is told is true, and what cannot be told is not guessed."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.policy import (
    Name,
    Policy,
    Source,
    Target,
    build_policy,
    decide,
    judge_address,
    parse_host_mapping,
    parse_rule,
)
from exeat.policy.replay import Again, Outcome, Recorded, Unknown, judge_again
from tests.support.examples import examples

HERE = Source("test", 1)
HOSTS = ("a.test", "b.a.test")
RULES = (
    "a.test", "a.test:443", "a.test methods=GET", "a.test paths=/x/**", "a.test methods=GET paths=/x/**|/y", ".a.test",
    "*.a.test paths=/y", "a.test private", "a.test private paths=/x/**", "a.test:443 methods=POST",
    "*.a.test:8000-8010", "!a.test", "!a.test paths=/x/**", "!a.test methods=POST", "!.a.test:443 paths=/y",
    "!10.0.0.0/8", "10.0.0.0/8", "!10.0.0.0/8 paths=/x/z", "!93.184.216.34:80 methods=GET", "!*.a.test:8000",
)  # fmt: skip


def policy(*rules: str, hosts: tuple[str, ...] = ()) -> Policy:
    return build_policy([parse_rule(text, HERE) for text in rules], [parse_host_mapping(text, HERE) for text in hosts])


def recorded(**fields: Any) -> Recorded:
    standard: dict[str, Any] = {
        "host": "a.test",
        "port": 443,
        "method": "CONNECT",
        "protocol": "connect",
        "allowed": True,
        "rule": "a.test",
        "reason": "allowed",
        "address": "93.184.216.34",
        "policy": "",
        "jailed": True,
    }
    return Recorded(**(standard | fields))


def denied(reason: str = "not-listed", **fields: Any) -> Recorded:
    return recorded(**({"allowed": False, "reason": reason, "rule": "", "address": ""} | fields))


def test_a_rule_that_is_gone_is_told_with_the_new_reason() -> None:
    """What was allowed and is not listed any more is denied now."""
    assert judge_again(policy("b.test"), recorded()) == Again(Outcome.DENIED, "", "not-listed")
    assert judge_again(policy("!a.test", "a.test"), recorded()) == Again(Outcome.DENIED, "!a.test", "denied-by-rule")
    assert judge_again(policy("a.test:80"), recorded()).reason == "port-not-listed"


def test_a_new_rule_is_told() -> None:
    """What was denied and is listed now is allowed now, and by what."""
    assert judge_again(policy(".a.test"), denied()) == Again(Outcome.ALLOWED, ".a.test", "allowed")


def test_another_rule_with_the_same_verdict_is_no_difference() -> None:
    """Only verdicts count."""
    assert judge_again(policy(".a.test"), recorded()).outcome is Outcome.SAME
    assert judge_again(policy("b.test"), denied()).outcome is Outcome.SAME


def test_where_it_led_is_judged_too() -> None:
    """An inside address needs `private`, a mapping, or a rule of its own, now as then."""
    inside = recorded(address="10.0.0.5", rule="a.test private")
    assert judge_again(policy("a.test"), inside) == Again(Outcome.DENIED, "a.test", "private-address")
    assert judge_again(policy("a.test private"), inside).outcome is Outcome.SAME
    assert judge_again(policy("a.test", "10.0.0.5"), inside).outcome is Outcome.SAME
    assert judge_again(policy("a.test", hosts=("a.test:10.0.0.5",)), inside).outcome is Outcome.SAME
    assert judge_again(policy("a.test", "!93.184.216.34"), recorded()).reason == "denied-by-rule"
    refused = denied("private-address", rule="a.test", address="10.0.0.5")
    assert judge_again(policy("a.test private"), refused).outcome is Outcome.ALLOWED
    assert judge_again(policy("a.test"), refused).outcome is Outcome.SAME


def test_an_address_of_this_machine_stays_one() -> None:
    """That the address was the machine's own is on record, and is believed."""
    own = denied("own-address", rule="a.test", address="93.184.216.34")
    assert judge_again(policy("a.test"), own).outcome is Outcome.SAME
    assert judge_again(policy("a.test private"), own).outcome is Outcome.ALLOWED
    loop = denied("own-address", rule="", address="127.0.0.1")
    assert judge_again(policy("a.test private"), loop).outcome is Outcome.OTHER


def test_paths_that_are_not_on_record_are_not_guessed() -> None:
    """A rule with paths decides only if the path cannot matter."""
    request = recorded(method="GET", protocol="http", port=80)
    by_path = policy("a.test paths=/x/**")
    assert judge_again(by_path, request) == Again(Outcome.UNKNOWN, "a.test paths=/x/**", Unknown.PATH)
    assert judge_again(by_path, denied(method="GET", protocol="http", port=80)).outcome is Outcome.UNKNOWN
    but_not = policy("a.test", "!a.test paths=/x/**")
    assert judge_again(but_not, request) == Again(Outcome.UNKNOWN, "!a.test paths=/x/**", Unknown.PATH)
    assert judge_again(policy("a.test", "a.test paths=/x/**"), request).outcome is Outcome.SAME
    assert judge_again(policy("a.test methods=POST paths=/x/**"), request).reason == "method-not-listed"


def test_the_rule_on_record_tells_of_its_paths() -> None:
    """A rule that allowed it then fits now; one that it just missed does not."""
    by_path, other = "a.test paths=/x/**", "a.test paths=/y"
    request = recorded(method="GET", protocol="http", port=80, rule=by_path)
    assert judge_again(policy(by_path, "b.test"), request).outcome is Outcome.SAME
    assert judge_again(policy(other), request).outcome is Outcome.UNKNOWN
    missed = denied("path-not-listed", method="GET", protocol="http", port=80, rule=by_path)
    assert judge_again(policy(by_path, "b.test"), missed).outcome is Outcome.SAME
    assert judge_again(policy(by_path, other), missed).outcome is Outcome.UNKNOWN
    stopped = denied("denied-by-rule", method="GET", protocol="http", port=80, rule="!a.test paths=/x/**")
    assert judge_again(policy("a.test", "!a.test paths=/x/**"), stopped).outcome is Outcome.SAME


def test_tunnels_that_would_be_looked_into_cannot_be_told() -> None:
    """What went through a blind tunnel is on no record. One that was looked into has its requests there."""
    by_method = policy("a.test methods=GET")
    assert judge_again(by_method, recorded()) == Again(Outcome.UNKNOWN, "a.test methods=GET", Unknown.TUNNEL)
    assert judge_again(by_method, recorded(reason="intercepted", address="")).outcome is Outcome.SAME
    assert judge_again(by_method, denied()).outcome is Outcome.UNKNOWN
    for still in ({"intercepts": False}, {}):
        found = judge_again(by_method, recorded(jailed=bool(still)), **still)
        assert found == Again(Outcome.DENIED, "a.test methods=GET", "needs-interception")
    inner = recorded(method="GET", protocol="connect/https")
    assert judge_again(by_method, inner).outcome is Outcome.SAME
    assert judge_again(by_method, inner, intercepts=False).outcome is Outcome.DENIED
    assert judge_again(by_method, inner._replace(method="POST")).reason == "method-not-listed"


def test_names_that_tls_asked_for_are_not_guessed() -> None:
    """Without `allow_sni_mismatch` a tunnel passes only if the names agree, and they are not on record."""
    wide = recorded(rule="a.test allow_sni_mismatch")
    assert judge_again(policy("a.test"), wide) == Again(Outcome.UNKNOWN, "a.test", Unknown.TLS_NAME)
    assert judge_again(policy("a.test allow_sni_mismatch"), wide).outcome is Outcome.SAME
    refused = denied("sni-mismatch", rule="a.test")
    assert judge_again(policy("a.test"), refused).outcome is Outcome.OTHER
    assert judge_again(policy("a.test allow_sni_mismatch"), refused).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("reason", ["malformed", "credentials", "protocol-not-carried", "revoked", "unknown-address"])
def test_what_no_policy_decides_is_left_out(reason: str) -> None:
    """A refusal for another reason stays one."""
    assert judge_again(policy("a.test"), denied(reason)).outcome is Outcome.OTHER


@pytest.mark.parametrize("host", ["", "a b", "x" * 300, "a\x1b[0m.test", "-"])
def test_hosts_that_are_none_are_left_out(host: str) -> None:
    """Such a text can be on record, and no policy lists it."""
    assert judge_again(policy("* force"), denied(host=host)).outcome is Outcome.OTHER
    assert judge_again(policy("a.test"), recorded(address=host or "?")).outcome is Outcome.OTHER
    assert judge_again(policy("a.test"), denied(port=0)).outcome is Outcome.OTHER


def test_lookups_are_answered_for_names_that_could_be_allowed() -> None:
    """A refused lookup is all that is on record of a program that knows no proxy."""
    lookup = denied(protocol="dns", port=53, method="AAAA")
    assert judge_again(policy("a.test:8080"), lookup) == Again(Outcome.ALLOWED, "a.test:8080", "allowed")
    assert judge_again(policy("b.test"), lookup).outcome is Outcome.SAME
    assert judge_again(policy("* force"), lookup._replace(method="PTR")).outcome is Outcome.OTHER


def test_the_policy_of_then_changes_nothing() -> None:
    """The digest on record says that it is the same policy, whatever its paths are."""
    then = policy("a.test paths=/x/**", "a.test:80 paths=/y")
    request = recorded(method="GET", protocol="http", port=80, rule="?", policy=then.digest)
    assert judge_again(then, request).outcome is Outcome.SAME
    assert judge_again(then, request._replace(policy="other")).outcome is Outcome.UNKNOWN


def verdict(judging: Policy, target: Target, address: str) -> Any:
    found = decide(judging, target)
    return judge_address(judging, found, target, ip_address(address), own=False)


@settings(max_examples=examples(600))
@given(
    before=st.lists(st.sampled_from(RULES), max_size=5),
    after=st.lists(st.sampled_from(RULES), max_size=5),
    host=st.sampled_from(HOSTS),
    port=st.sampled_from((80, 443, 8000)),
    method=st.sampled_from(("GET", "POST")),
    path=st.sampled_from(("/", "/x/z", "/y")),
    address=st.sampled_from(("93.184.216.34", "10.1.2.3")),
)
def test_what_is_told_is_what_the_gateway_would_do(
    before: list[str], after: list[str], host: str, port: int, method: str, path: str, address: str
) -> None:
    """For any two policies: a verdict that is told is the one that the whole request gets, its path included."""
    old, new = policy(*before), policy(*after)
    target = Target(Name(host), port, method, path)
    then, now = verdict(old, target, address), verdict(new, target, address)
    resolved = then.allowed or decide(old, target).allowed  # what is denied by its name alone is never looked up
    again = judge_again(
        new,
        recorded(
            host=host, port=port, method=method, protocol="http", allowed=then.allowed, reason=then.reason.value,
            rule=then.rule.text if then.rule is not None else "", address=address if resolved else "",
            policy=old.digest,
        ),
    )  # fmt: skip
    if not resolved:
        now = decide(new, target)
    match again.outcome:
        case Outcome.SAME:
            assert now.allowed == then.allowed
        case Outcome.ALLOWED:
            assert (now.allowed, then.allowed) == (True, False)
        case Outcome.DENIED:
            assert (now.allowed, then.allowed) == (False, True)
        case Outcome.UNKNOWN:
            assert any("paths=" in rule for rule in after)
        case _:
            pytest.fail(f"{again}")
