"""Which names could be allowed at all: what asking decide() about everything would say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.policy import Name, Policy, Reason, Source, Target, build_policy, decide, parse_rule
from exeat.policy.decide import could_allow, unreachable
from tests.support.examples import examples

HERE = Source("test", 1, 1)
NAMES = ["good.test", "a.good.test", "b.a.good.test", "other.test", "test"]
PORTS = range(1, 9)  # the rules below name no others, apart from the web ports and "all"
METHODS = [None, "GET", "POST"]
PATHS = ["/", "/pub", "/pub/x", "/secret"]

hosts = st.sampled_from([*NAMES, "*.good.test", ".good.test", "*.a.good.test", "*", "10.0.0.0/8"])
ports = st.one_of(
    st.sampled_from(["", ":*"]),
    st.integers(1, 8).map(lambda port: f":{port}"),
    st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: f":{min(pair)}-{max(pair)}"),
)
conditions = st.sampled_from(["", "", "", " methods=GET", " paths=/pub/**", " methods=POST paths=/secret"])


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    host = draw(hosts)
    deny = draw(st.booleans())
    force = " force" if host == "*" and not deny else ""
    return f"{'!' if deny else ''}{host}{draw(ports)}{force}{draw(conditions)}"


def policy_of(*texts: str) -> Policy:
    return build_policy(parse_rule(text, HERE) for text in texts)


def allowed_somewhere(policy: Policy, name: Name) -> bool:
    """Ask about everything: every port that a rule tells from others, every method, every path."""
    targets = (
        Target(name, port, method, path if method else None)
        for port in (*PORTS, 80, 443, 9, 65535)
        for method in METHODS
        for path in PATHS
    )
    return any(decide(policy, target).allowed for target in targets)


@settings(max_examples=examples(1000))
@given(st.lists(rule_texts(), max_size=6), st.sampled_from(NAMES))
def test_it_agrees_with_decide(texts: list[str], text: str) -> None:
    """Never False for what is allowed somewhere; exact when no deny rule looks at methods or paths."""
    policy, name = policy_of(*texts), Name(text)
    somewhere = allowed_somewhere(policy, name)
    if somewhere:
        assert could_allow(policy, name)
    if not any(rule.deny and rule.conditional for rule in policy.rules):
        assert could_allow(policy, name) is somewhere


@settings(max_examples=examples(500))
@given(st.lists(rule_texts(), max_size=6), st.sampled_from(NAMES))
def test_the_denial_on_record_is_true(texts: list[str], text: str) -> None:
    """A name that could not be allowed is not listed, or denied by a rule that is named and covers it."""
    policy, name = policy_of(*texts), Name(text)
    if could_allow(policy, name):
        return
    denial = unreachable(policy, name)
    assert not denial.allowed
    if any(True for _ in policy.allows.for_name(text)):
        assert denial.reason is Reason.DENIED_BY_RULE
    if denial.reason is Reason.DENIED_BY_RULE:
        assert denial.rule in list(policy.denies.for_name(text))
    else:
        assert denial.reason is Reason.NOT_LISTED


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], False),
        (["good.test"], True),
        (["good.test:22"], True),
        (["*.good.test"], False),
        ([".good.test"], True),
        (["* force"], True),
        (["10.0.0.0/8"], False),
        (["good.test", "!good.test"], False),
        (["good.test", "!*:*"], False),
        (["good.test:*", "!good.test"], True),
        (["good.test:*", "!good.test:2-65535"], True),
        (["good.test:*", "!good.test:1-65534"], True),
        (["good.test:*", "!good.test:1-100", "!.good.test:101-65535"], False),
        (["good.test:*", "!good.test:1-100", "!.good.test:102-65535"], True),
        (["good.test:*", "!good.test:1-50000", "!good.test:3-5", "!good.test:50001-65535"], False),
        (["good.test", "!good.test:80"], True),
        (["good.test", "!good.test:80", "!good.test:443"], False),
        (["good.test", "!good.test methods=GET"], True),
        (["good.test methods=GET"], True),
        (["good.test methods=GET", "!good.test:*"], False),
    ],
)
def test_plain_cases(texts: list[str], expected: bool) -> None:
    """Deny beats allow, port by port; what depends on the request is left to the request."""
    assert could_allow(policy_of(*texts), Name("good.test")) is expected
