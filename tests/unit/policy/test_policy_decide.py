"""The verdict: default deny, deny over allow, names and addresses kept apart, answers judged one by one."""

from __future__ import annotations

import hashlib
from ipaddress import ip_address

import pytest

from exeat.policy import (
    Decision,
    Name,
    Policy,
    Reason,
    Source,
    Target,
    build_policy,
    canonical_host,
    decide,
    judge_address,
    parse_host_mapping,
    parse_rule,
)

HERE = Source("test")
R = Reason


def policy(*rules: str, hosts: tuple[str, ...] = ()) -> Policy:
    return build_policy((parse_rule(text, HERE) for text in rules), (parse_host_mapping(each, HERE) for each in hosts))


def target(host: str, port: int = 443, method: str | None = None, path: str | None = None) -> Target:
    return Target(canonical_host(host), port, method, path)


FIXTURE = ("good.test", "*.wild.test")


@pytest.mark.parametrize("host", ["good.test", "localhost", "10.0.0.1", "8.8.8.8", "[::1]"])
def test_empty_policy_denies_everything(host: str) -> None:
    """No rule never means allow."""
    for empty in (Policy(), build_policy([]), Policy(rules=(), hosts=())):
        assert not decide(empty, target(host)).allowed


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("good.test", 443, R.ALLOWED),
        ("good.test", 80, R.ALLOWED),
        ("GOOD.TEST.", 443, R.ALLOWED),
        ("good.test", 22, R.PORT_NOT_LISTED),
        ("good.test", 8080, R.PORT_NOT_LISTED),
        ("a.wild.test", 443, R.ALLOWED),
        ("a.b.c.wild.test", 443, R.ALLOWED),
        ("wild.test", 443, R.NOT_LISTED),
        ("evil.test", 443, R.NOT_LISTED),
        ("evilgood.test", 443, R.NOT_LISTED),
        ("good.test.evil.test", 443, R.NOT_LISTED),
        ("goodxtest", 443, R.NOT_LISTED),
        ("sub.good.test", 443, R.NOT_LISTED),
        ("evilwild.test", 443, R.NOT_LISTED),
        ("a.evilwild.test", 443, R.NOT_LISTED),
        ("a.wild.test.evil.test", 443, R.NOT_LISTED),
        ("awildxtest", 443, R.NOT_LISTED),
        ("test", 443, R.NOT_LISTED),
        ("1.2.3.4", 443, R.ADDRESS_NOT_LISTED),
        ("[::1]", 443, R.ADDRESS_NOT_LISTED),
    ],
)
def test_names_match_by_label(host: str, port: int, reason: Reason) -> None:
    """A rule is a name, not a string: no prefix, suffix or regular-expression reading of it exists."""
    decision = decide(policy(*FIXTURE), target(host, port))
    assert decision.reason is reason
    assert decision.allowed is (reason is R.ALLOWED)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("apex.test", True), ("a.apex.test", True), ("a.b.apex.test", True), ("xapex.test", False), ("test", False)],
)
def test_leading_dot_covers_apex_and_subdomains(host: str, allowed: bool) -> None:
    """`.x` is x and everything below it."""
    assert decide(policy(".apex.test"), target(host)).allowed is allowed


def test_forced_star_allows_names_and_no_address() -> None:
    """`*` is any name; an address still has to be listed."""
    assert decide(policy("* force"), target("any.thing.test")).allowed
    assert decide(policy("* force"), target("8.8.8.8")).reason is R.ADDRESS_NOT_LISTED


@pytest.mark.parametrize(
    ("rules", "host", "port", "reason"),
    [
        (("1.2.3.4",), "1.2.3.4", 443, R.ALLOWED),
        (("1.2.3.4",), "[::ffff:1.2.3.4]", 443, R.ALLOWED),
        (("[::ffff:1.2.3.4]",), "1.2.3.4", 443, R.ALLOWED),
        (("1.2.3.4",), "1.2.3.4", 22, R.PORT_NOT_LISTED),
        (("1.2.3.4",), "1.2.3.5", 443, R.ADDRESS_NOT_LISTED),
        (("1.2.3.0/24:22",), "1.2.3.5", 22, R.ALLOWED),
        (("1.2.3.0/24:22",), "1.2.4.5", 22, R.ADDRESS_NOT_LISTED),
        (("[2606:4700::/32]",), "[2606:4700::1]", 443, R.ALLOWED),
        (("[2606:4700::/32]",), "[2606:4701::1]", 443, R.ADDRESS_NOT_LISTED),
        (("127.0.0.1:8080",), "127.0.0.1", 8080, R.ALLOWED),
        (("10.0.0.0/8",), "10.1.2.3", 443, R.ALLOWED),
        (("0.0.0.0/0",), "8.8.8.8", 443, R.ALLOWED),
        (("0.0.0.0/0",), "10.1.2.3", 443, R.PRIVATE_ADDRESS),
        (("0.0.0.0/0",), "169.254.169.254", 80, R.PRIVATE_ADDRESS),
        (("0.0.0.0/0 private",), "10.1.2.3", 443, R.ALLOWED),
        (("0.0.0.0/0", "10.0.0.0/8"), "10.1.2.3", 443, R.ALLOWED),
        (("[::/0]",), "[::1]", 443, R.PRIVATE_ADDRESS),
        (("[::/0]",), "127.0.0.1", 443, R.ADDRESS_NOT_LISTED),
        (("[::/0]",), "[64:ff9b::808:808]", 443, R.PRIVATE_ADDRESS),
        (("8.8.8.8",), "[64:ff9b::808:808]", 443, R.ADDRESS_NOT_LISTED),
        (("[64:ff9b::808:808]",), "[64:ff9b::808:808]", 443, R.ALLOWED),
        (("*.test.test", "good.test"), "127.0.0.1", 443, R.ADDRESS_NOT_LISTED),
    ],
)
def test_address_must_be_listed(rules: tuple[str, ...], host: str, port: int, reason: Reason) -> None:
    """An address is allowed by itself or its CIDR only, and inside addresses need a rule that means them."""
    assert decide(policy(*rules), target(host, port)).reason is reason


A3 = [
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::127.0.0.1",
    "fec0::1",
    "224.0.0.1",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "100.100.100.200",
    "127.0.0.1",
    "::1",
    "0.0.0.0",
    "10.0.0.1",
    "fe80::1",
]


@pytest.mark.parametrize("text", A3)
def test_special_address_is_denied_as_literal_and_as_answer(text: str) -> None:
    """An inside address is out of reach by number and by an allowed name that points at it (A3, D2, D5)."""
    rules = policy(*FIXTURE, "0.0.0.0/0", "[::/0]")
    assert not decide(rules, target(text)).allowed
    named = target("good.test")
    answer = judge_address(rules, decide(rules, named), named, ip_address(text), own=False)
    assert (answer.allowed, answer.reason) == (False, R.PRIVATE_ADDRESS)


@pytest.mark.parametrize(
    ("rules", "host", "port"),
    [
        (("good.test", "!good.test"), "good.test", 443),
        (("!good.test", "good.test"), "good.test", 443),
        (("good.test", "!*.good.test", "!.test"), "good.test", 443),
        (("a.good.test", "!*.good.test"), "a.good.test", 443),
        (("a.good.test", "!.good.test"), "a.good.test", 443),
        (("a.good.test", "!*.test"), "a.good.test", 443),
        (("a.good.test", "!*"), "a.good.test", 443),
        (("good.test:*", "!good.test:22"), "good.test", 22),
        (("good.test:22", "!*:22"), "good.test", 22),
        (("10.0.0.1:*", "!10.0.0.0/8:*"), "10.0.0.1", 443),
        (("10.0.0.0/8", "!10.0.0.1"), "10.0.0.1", 443),
        (("1.2.3.4:22", "!*:22"), "1.2.3.4", 22),
        (("[64:ff9b::a00:1]", "!10.0.0.0/8"), "[64:ff9b::a00:1]", 443),
        (("[2002:a00:1::1]", "!10.0.0.1"), "[2002:a00:1::1]", 443),
        (("1.2.3.4", "![::ffff:1.2.3.4]"), "1.2.3.4", 443),
    ],
)
def test_deny_beats_allow_at_every_scope(rules: tuple[str, ...], host: str, port: int) -> None:
    """However specific the allow and however wide the deny, in any order."""
    for order in (rules, rules[::-1]):
        decision = decide(policy(*order), target(host, port))
        assert decision.reason is R.DENIED_BY_RULE
        assert decision.rule is not None
        assert decision.rule.deny


def test_deny_leaves_its_neighbours_alone() -> None:
    """A deny rule covers its port and its labels, no more."""
    rules = policy("good.test:*", ".apex.test", "!good.test:22", "!*.apex.test")
    assert decide(rules, target("good.test", 443)).allowed
    assert decide(rules, target("apex.test")).allowed
    assert not decide(rules, target("a.apex.test")).allowed


def judged(rules: Policy, host: str, ip: str, *, own: bool = False, port: int = 443) -> Decision:
    asked = target(host, port)
    return judge_address(rules, decide(rules, asked), asked, ip_address(ip), own=own)


@pytest.mark.parametrize(
    ("rules", "hosts", "ip", "own", "reason"),
    [
        (("good.test",), (), "8.8.8.8", False, R.ALLOWED),
        (("good.test",), (), "2606:4700::1", False, R.ALLOWED),
        (("good.test",), (), "::ffff:8.8.8.8", False, R.ALLOWED),
        (("good.test",), (), "8.8.8.8", True, R.OWN_ADDRESS),
        (("good.test",), (), "10.0.0.1", True, R.PRIVATE_ADDRESS),
        (("good.test",), (), "64:ff9b::808:808", False, R.PRIVATE_ADDRESS),
        (("good.test private",), (), "10.0.0.1", False, R.ALLOWED),
        (("good.test private",), (), "8.8.8.8", True, R.ALLOWED),
        (("good.test", ".good.test private"), (), "10.0.0.1", False, R.ALLOWED),
        (("good.test", ".good.test:22 private"), (), "10.0.0.1", False, R.PRIVATE_ADDRESS),
        (("good.test", "10.0.0.1"), (), "10.0.0.1", False, R.ALLOWED),
        (("good.test", "10.0.0.1:22"), (), "10.0.0.1", False, R.PRIVATE_ADDRESS),
        (("good.test", "10.0.0.0/8"), (), "10.0.0.1", False, R.ALLOWED),
        (("good.test", "0.0.0.0/0"), (), "10.0.0.1", False, R.PRIVATE_ADDRESS),
        (("good.test", "0.0.0.0/0 private"), (), "10.0.0.1", False, R.ALLOWED),
        (("good.test", "8.8.8.0/24"), (), "8.8.8.8", True, R.OWN_ADDRESS),
        (("good.test", "8.8.8.8"), (), "8.8.8.8", True, R.ALLOWED),
        (("good.test",), ("good.test:10.0.0.1",), "10.0.0.1", False, R.ALLOWED),
        (("good.test",), ("good.test:10.0.0.1",), "::ffff:10.0.0.1", False, R.ALLOWED),
        (("good.test",), ("good.test:10.0.0.1",), "10.0.0.2", False, R.PRIVATE_ADDRESS),
        (("good.test",), ("other.test:10.0.0.1",), "10.0.0.1", False, R.PRIVATE_ADDRESS),
        (("good.test",), ("good.test:8.8.8.8",), "8.8.8.8", True, R.ALLOWED),
        (("good.test", "!8.8.8.8"), (), "8.8.8.8", False, R.DENIED_BY_RULE),
        (("good.test", "!8.8.8.0/24:22"), (), "8.8.8.8", False, R.ALLOWED),
        (("good.test private", "!10.0.0.0/8"), (), "10.0.0.1", False, R.DENIED_BY_RULE),
        (("good.test private", "!10.0.0.0/8"), (), "64:ff9b::a00:1", False, R.DENIED_BY_RULE),
        (("good.test private", "!10.0.0.0/8"), (), "2002:a00:1::", False, R.DENIED_BY_RULE),
        (("good.test private", "!169.254.169.254"), (), "64:ff9b:1:a9fe:a9:fe00::", False, R.DENIED_BY_RULE),
        (("good.test", "!10.0.0.0/8"), ("good.test:10.0.0.1",), "10.0.0.1", False, R.DENIED_BY_RULE),
    ],
)
def test_answer_of_a_name(rules: tuple[str, ...], hosts: tuple[str, ...], ip: str, own: bool, reason: Reason) -> None:
    """What an allowed name resolves to is judged again: the name's owner must not choose an inside address."""
    assert judged(policy(*rules, hosts=hosts), "good.test", ip, own=own).reason is reason


def test_mixed_answers_are_judged_one_by_one() -> None:
    """A public address next to a metadata address does not whitewash it (D2)."""
    reasons = [judged(policy("good.test"), "good.test", ip).reason for ip in ("8.8.8.8", "169.254.169.254")]
    assert reasons == [R.ALLOWED, R.PRIVATE_ADDRESS]


def test_answer_never_turns_a_denial_round() -> None:
    """A denied target stays denied whatever it resolves to, for the reason first given."""
    rules = policy("good.test", "10.0.0.1")
    assert judged(rules, "evil.test", "10.0.0.1").reason is R.NOT_LISTED


def test_mapping_alone_allows_nothing() -> None:
    """`--add-host` says where a name is, not that it may be reached."""
    assert not decide(policy(hosts=("good.test:10.0.0.1",)), target("good.test")).allowed


def test_address_target_that_is_our_own() -> None:
    """Listing our own address by number is clear intent; a network round it is not."""
    assert judged(policy("8.8.8.8"), "8.8.8.8", "8.8.8.8", own=True).allowed
    assert judged(policy("8.8.8.0/24"), "8.8.8.8", "8.8.8.8", own=True).reason is R.OWN_ADDRESS


@pytest.mark.parametrize(
    ("rules", "method", "path", "reason"),
    [
        (("good.test methods=GET|HEAD",), "GET", "/", R.ALLOWED),
        (("good.test methods=GET|HEAD",), "POST", "/", R.METHOD_NOT_LISTED),
        (("good.test methods=GET",), "get", "/", R.METHOD_NOT_LISTED),
        (("good.test paths=/a/**",), "GET", "/a/b", R.ALLOWED),
        (("good.test paths=/a/**",), "GET", "/b", R.PATH_NOT_LISTED),
        (("good.test paths=/a/**",), "GET", "/a/../b", R.PATH_NOT_LISTED),
        (("good.test paths=/a/**",), "GET", "/a/%2e%2e/b", R.PATH_NOT_LISTED),
        (("good.test paths=/a/**",), "GET", "/a/%2fb", R.PATH_NOT_LISTED),
        (("good.test paths=/a/**",), "GET", None, R.PATH_NOT_LISTED),
        (("good.test paths=/**",), "OPTIONS", "*", R.PATH_NOT_LISTED),
        (("good.test methods=GET paths=/a",), "POST", "/a", R.METHOD_NOT_LISTED),
        (("good.test methods=GET paths=/a",), "GET", "/b", R.PATH_NOT_LISTED),
        (("good.test methods=GET paths=/a", "good.test methods=POST paths=/b"), "POST", "/b", R.ALLOWED),
        (("good.test methods=GET paths=/a", "good.test methods=POST paths=/b"), "POST", "/a", R.PATH_NOT_LISTED),
        (("good.test methods=GET", "*.test force"), "POST", "/", R.ALLOWED),
        (("good.test methods=GET", "good.test:22"), "POST", "/", R.METHOD_NOT_LISTED),
        (("good.test methods=GET",), None, None, R.NEEDS_INTERCEPTION),
        (("good.test paths=/a",), None, None, R.NEEDS_INTERCEPTION),
        (("good.test paths=/a", "good.test:443"), None, None, R.ALLOWED),
        (("good.test", "!good.test methods=DELETE"), "GET", "/", R.ALLOWED),
        (("good.test", "!good.test methods=DELETE"), "DELETE", "/", R.DENIED_BY_RULE),
        (("good.test", "!good.test methods=DELETE"), "delete", "/", R.DENIED_BY_RULE),
        (("good.test", "!good.test paths=/admin/**"), "GET", "/admin/x", R.DENIED_BY_RULE),
        (("good.test", "!good.test paths=/admin/**"), "GET", "/x", R.ALLOWED),
        (("good.test", "!good.test paths=/admin/**"), "GET", "/x/../admin", R.DENIED_BY_RULE),
        (("good.test", "!good.test paths=/admin/**"), "GET", None, R.DENIED_BY_RULE),
        (("good.test", "!good.test paths=/admin/**"), None, None, R.NEEDS_INTERCEPTION),
        (("good.test", "!good.test methods=DELETE"), None, None, R.NEEDS_INTERCEPTION),
        (("good.test", "!good.test methods=DELETE", "!good.test"), None, None, R.DENIED_BY_RULE),
        (("!good.test methods=DELETE",), None, None, R.NOT_LISTED),
        (("good.test", "!good.test methods=DELETE paths=/a"), "DELETE", "/b", R.ALLOWED),
    ],
)
def test_methods_and_paths(rules: tuple[str, ...], method: str | None, path: str | None, reason: Reason) -> None:
    """Rules for one host are alternatives; a tunnel hides what they ask for, so it fails closed."""
    decision = decide(policy(*rules), target("good.test", 443, method, path))
    assert decision.reason is reason
    assert decision.allowed is (reason is R.ALLOWED)


def test_method_rule_for_an_address_answer_must_fit_too() -> None:
    """An address rule that asks for GET does not open the address for a tunnel or a POST."""
    rules = policy("good.test", "10.0.0.1 methods=GET")
    for method, allowed in ((None, False), ("POST", False), ("GET", True)):
        asked = target("good.test", 443, method, "/")
        found = judge_address(rules, decide(rules, asked), asked, ip_address("10.0.0.1"), own=False)
        assert found.allowed is allowed


def test_most_specific_rule_is_reported_whatever_the_order() -> None:
    """Exact before suffix, long suffix before short, narrow ports before wide: the log does not depend on order."""
    rules = (".test force", ".good.test max_upload=5", "*.good.test:*", "a.good.test:*", "a.good.test:443", "* force")
    for order in (rules, rules[::-1], sorted(rules)):
        decision = decide(policy(*order), target("a.good.test"))
        assert decision.rule is not None
        assert decision.rule.text == "a.good.test:443"
        longest = decide(policy(*order), target("good.test")).rule
        assert longest is not None
        assert longest.text == ".good.test max_upload=5"


def test_digest_depends_on_meaning_only() -> None:
    """Order, repetition, spelling and source of rules do not change it; a rule or a mapping does."""
    one = policy("good.test", "*.wild.test:443", hosts=("a.test:10.0.0.1", "a.test:::1"))
    same = build_policy(
        [parse_rule(text, Source("x", 9, 9)) for text in ("*.WILD.test:443-443", "GOOD.test.", "good.test")],
        [parse_host_mapping("A.test:[::1]", HERE), parse_host_mapping("a.test:10.0.0.1", HERE)],
    )
    canonical = b'{"hosts":{"a.test":["10.0.0.1","::1"]},"rules":["*.wild.test:443","good.test"]}'
    assert one.digest == same.digest == hashlib.sha256(canonical).hexdigest()[:32]
    others = {
        policy().digest,
        policy("good.test").digest,
        policy("good.test private").digest,
        policy("!good.test").digest,
        policy(hosts=("good.test:10.0.0.1",)).digest,
        one.digest,
    }
    assert len(others) == 6
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in others)


def test_policy_is_a_value() -> None:
    """Equal by content, hashable, frozen, and without repeated rules."""
    one, two = policy("good.test", "good.test", "a.test"), policy("good.test", "a.test")
    assert one == two
    assert hash(one) == hash(two)
    assert one != policy("good.test")
    assert len(one.rules) == 2
    with pytest.raises(AttributeError):
        one.rules = ()  # type: ignore[misc]


def test_host_mappings_are_merged_and_found_by_canonical_name() -> None:
    """Several `--add-host` for one name give several addresses; a subdomain is another name."""
    rules = policy(hosts=("A.test:10.0.0.1", "a.test.:::1", "a.test:10.0.0.1"))
    assert rules.mapped(Name("a.test")) == (ip_address("10.0.0.1"), ip_address("::1"))
    assert rules.mapped(Name("b.a.test")) == ()
