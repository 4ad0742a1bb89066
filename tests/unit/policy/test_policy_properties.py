"""Properties over random input: parsers are total, canonical forms are stable, and the index changes no verdict."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.errors import ConfigError, HostError, ProtocolError
from exeat.policy import (
    Address,
    Decision,
    Name,
    Policy,
    Reason,
    Rule,
    Scope,
    Source,
    Target,
    build_policy,
    canonical_host,
    canonical_path,
    classify,
    decide,
    judge_address,
    parse_document,
    parse_host_mapping,
    parse_rule,
    split_authority,
)
from exeat.policy.address import AddressClass, carried_ipv4, holds_no_public
from exeat.policy.decide import address_depends_on_request, depends_on_request
from exeat.policy.document import PolicyDocument, parse_allowlist
from exeat.policy.host import configured_host
from tests.support.examples import examples

HERE = Source("test", 1, 1)

# Text made of the pieces that matter, so that random input gets past the first check.
PIECES = ["a", "test", "good", "xn--", "xn--bcher-kva", "1", "0x7f", "127", "0", "255", "::", ":", ".", "-", "_", "*"]
PIECES += ["[", "]", "/", "8", "32", "!", " ", "443", "%", "\0", "\n", "é", "。", "@", "\\", "ffff", "private", "force"]
PIECES += ["methods=", "GET", "|", "paths=", "/**", "max_upload=", "10MB", "com", "co.uk", "\ud800"]
near_hosts = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
any_text = st.one_of(st.text(max_size=80), near_hosts)


@given(any_text)
@example("GOOD.test.")
@example("[::ffff:1.2.3.4]")
def test_canonical_host_is_total_and_idempotent(text: str) -> None:
    """Any text is a host or a HostError, and a canonical host is its own canonical form."""
    try:
        host = canonical_host(text)
    except HostError:
        return
    assert canonical_host(host.text) == host
    assert canonical_host(host.authority) == host
    assert split_authority(host.authority) == (host, None)
    assert split_authority(f"{host.authority}:443") == (host, 443)
    assert host.text == host.text.lower()
    assert host.text.isascii()
    assert host.text.isprintable()
    assert not set(host.text) & set("%@/\\[] *")


@given(any_text)
def test_configured_host_is_total_and_canonical(text: str) -> None:
    """A configured host is a host that a request can name, or an error."""
    try:
        host = configured_host(text)
    except HostError:
        return
    assert canonical_host(host.text) == host


@given(any_text)
def test_split_authority_is_total(text: str) -> None:
    """Any text becomes a host and a port, or a HostError."""
    try:
        host, port = split_authority(text)
    except HostError:
        return
    assert isinstance(host, (Name, Address))
    assert port is None or 1 <= port <= 65535


@given(any_text, st.booleans())
def test_parse_rule_is_total_and_round_trips(text: str, deny: bool) -> None:
    """Any text is a rule or a ConfigError with a place; a rule's text reads back as the same rule."""
    try:
        rule = parse_rule(text, HERE, deny=deny)
    except ConfigError as error:
        assert error.where.startswith("test:1:")  # noqa: PT017
        return
    assert parse_rule(rule.text, HERE) == rule
    assert parse_rule(rule.text, HERE).text == rule.text
    assert rule.text.isascii()
    assert rule.text.isprintable()


@given(any_text)
def test_allowlist_and_mapping_are_total(text: str) -> None:
    """Any value of the variable or the option is read or refused."""
    for parse in (lambda: parse_allowlist(text), lambda: parse_host_mapping(text, HERE)):
        try:
            parse()
        except ConfigError:
            pass


NAMES = ["a.test", "b.a.test", "c.b.a.test", "x.test", "a.b.x.test", "test", "xa.test", "localhost"]
IPS = ["1.2.3.4", "1.2.3.5", "10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "2606:4700::1", "64:ff9b::a00:1"]
IPS += ["2002:102:304::1", "fd00::1"]
HOSTS = [*NAMES, "*.a.test", ".a.test", "*.x.test", ".x.test", "*.test", ".test", "*", "1.2.3.4", "1.2.3.0/24"]
HOSTS += ["0.0.0.0/0", "10.0.0.0/8", "127.0.0.1", "[::1]", "[::/0]", "[2606:4700::/32]", "[fd00::/8]", "[64:ff9b::/96]"]
rule_texts = st.tuples(
    st.booleans(),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":443", ":22", ":*", ":20-100"]),
    st.sampled_from(["", " methods=GET", " paths=/a/**", " methods=POST|GET paths=/a|/b/*"]),
    st.sampled_from(["", " private"]),
).map(lambda t: f"!{t[1]}{t[2]}{t[3]}" if t[0] else f"{t[1]}{t[2]} force{t[3]}{t[4]}")
policies = st.lists(rule_texts, max_size=12)
targets = st.builds(
    lambda host, port, method, path: Target(canonical_host(host), port, method, path),
    st.sampled_from([*NAMES, *IPS]),
    st.sampled_from([22, 80, 443, 8080]),
    st.sampled_from([None, "GET", "POST", "get"]),
    st.sampled_from([None, "/a", "/a/b", "/b/c", "/c", "/a/../c", "/b//c"]),
)


def covers(rule: Rule, target: Target) -> bool:
    """The reference reading of a pattern, by comparing label lists and network membership."""
    pattern = rule.pattern
    match target.host:
        case Name(text):
            labels, base = text.split("."), pattern.name.split(".")
            below = len(labels) > len(base) and labels[-len(base) :] == base
            match pattern.scope:
                case Scope.EXACT:
                    return labels == base
                case Scope.BELOW:
                    return below
                case Scope.WITHIN:
                    return below or labels == base
                case Scope.ANY:
                    return True
                case Scope.NETWORK:  # `localhost` is also its addresses, where these are listed one by one
                    return text == "localhost" and not rule.deny and pattern.text in ("127.0.0.1", "[::1]")
        case Address(ip):
            if str(ip) in ("127.0.0.1", "::1") and pattern.scope is not Scope.ANY:
                by_name = covers(rule, Target(Name("localhost"), target.port))
                if pattern.network is None and by_name and (rule.deny or pattern.scope is Scope.EXACT):
                    return True
            if pattern.scope is Scope.ANY:
                return rule.deny
            forms: list[IPv4Address | IPv6Address] = [ip]
            if rule.deny and isinstance(ip, IPv6Address):
                forms += carried_ipv4(ip)
            return pattern.network is not None and any(form in pattern.network for form in forms)


def naive_path(pattern: str, path: str) -> bool:
    """Patterns by exhaustive recursion over segments: slow, obvious, and not the code under test."""

    def segment(p: str, s: str) -> bool:
        if not p:
            return not s
        if p[0] == "*":
            return segment(p[1:], s) or (bool(s) and segment(p, s[1:]))
        return bool(s) and p[0] == s[0] and segment(p[1:], s[1:])

    def run(p: list[str], s: list[str]) -> bool:
        if not p:
            return not s
        if p[0] == "**":
            return run(p[1:], s) or (bool(s) and run(p, s[1:]))
        return bool(s) and segment(p[0], s[0]) and run(p[1:], s[1:])

    return run(pattern[1:].split("/"), path[1:].split("/"))


def naive_allows(rules: list[Rule], target: Target) -> bool:
    """Default deny, deny first, one rule after the other, no index."""
    clean = target.path is not None and "//" not in target.path and ".." not in target.path
    for rule in rules:
        if not rule.deny or not covers(rule, target) or not rule.has_port(target.port):
            continue
        if target.method is None:
            return False
        method = rule.methods is None or target.method.upper() in rule.methods
        path = rule.paths is None or not clean or any(naive_path(each, target.path or "") for each in rule.paths)
        if method and path:
            return False
    for rule in rules:
        if rule.deny or not covers(rule, target) or not rule.has_port(target.port):
            continue
        if isinstance(target.host, Address) and classify(target.host.ip) is not AddressClass.PUBLIC:
            network = rule.pattern.network
            if network is None:
                assert rule.pattern.text == "localhost"
            elif not rule.private and network.num_addresses > 1 and not holds_no_public(network):
                continue
        if rule.methods is None and rule.paths is None:
            return True
        if target.method is None or (rule.methods is not None and target.method not in rule.methods):
            continue
        if rule.paths is None or (clean and any(naive_path(each, target.path or "") for each in rule.paths)):
            return True
    return False


@settings(max_examples=examples(1000))
@given(policies, targets)
def test_decide_equals_the_naive_reading(texts: list[str], target: Target) -> None:
    """The index has the verdict of a plain walk over the rules."""
    rules = [parse_rule(text, HERE) for text in texts]
    decision = decide(build_policy(rules), target)
    assert decision.allowed is naive_allows(rules, target)
    assert decision.allowed is (decision.reason is Reason.ALLOWED)
    if decision.allowed:
        assert decision.rule in rules
        assert decision.rule is not None
        assert not decision.rule.deny


requests = st.builds(
    lambda method, path: (method, path),
    st.sampled_from([None, "GET", "POST", "get"]),
    st.sampled_from([None, "/a", "/a/b", "/b/c", "/c", "/a/../c"]),
)


@settings(max_examples=examples(1000), deadline=None)
@given(policies, targets, requests)
def test_a_place_without_conditions_has_one_decision(
    texts: list[str], target: Target, request: tuple[str | None, str | None]
) -> None:
    """Where no rule looks at requests, what is decided about one holds for all, tunnels included."""
    policy = build_policy(parse_rule(text, HERE) for text in texts)
    other = Target(target.host, target.port, *request)
    if not depends_on_request(policy, target.host, target.port):
        assert decide(policy, target) == decide(policy, other)


@settings(max_examples=examples(1000), deadline=None)
@given(policies, targets, requests, st.sampled_from(IPS), st.booleans())
def test_an_address_without_conditions_has_one_judgement(
    texts: list[str], target: Target, request: tuple[str | None, str | None], ip: str, own: bool
) -> None:
    """Where no rule for addresses looks at requests, an address is good for all of them or for none."""
    policy = build_policy(parse_rule(text, HERE) for text in texts)
    other = Target(target.host, target.port, *request)
    decision = decide(policy, target)
    if not address_depends_on_request(policy, target.host, target.port):
        one, two = (judge_address(policy, decision, each, ip_address(ip), own=own) for each in (target, other))
        assert one == two


@given(policies, targets, st.randoms(use_true_random=False))
def test_order_of_rules_never_matters(texts: list[str], target: Target, chance: random.Random) -> None:
    """Shuffled rules give the same decision, rule and reason included, and the same digest."""
    shuffled = chance.sample(texts, len(texts))
    one, two = (build_policy(parse_rule(text, HERE) for text in each) for each in (texts, shuffled))
    assert decide(one, target) == decide(two, target)
    assert one.digest == two.digest


@given(policies, targets)
def test_adding_a_deny_rule_never_allows_more(texts: list[str], target: Target) -> None:
    """Deny rules only take away."""
    rules = [parse_rule(text, HERE) for text in texts]
    allows = [rule for rule in rules if not rule.deny]
    if decide(build_policy(rules), target).allowed:
        assert decide(build_policy(allows), target).allowed


@given(targets)
def test_empty_policy_denies(target: Target) -> None:
    """No rules, no way out."""
    decision: Decision = decide(Policy(), target)
    assert not decision.allowed


TOML = 'allow = ["a.test", \'b.test:22\']\ndeny = ["""evil.test"""]\n[hosts]\n"a.test" = ["::1"]\n[limits]\nx = 1 # c\n'
JSON = '{"allow": ["a.test", "b.test:22"], "deny": ["\\u0065vil.test"], "hosts": {"a.test": "::1"}, "limits": {"x": 1}}'


@settings(max_examples=examples(400))
@given(
    st.sampled_from([(TOML, "p.toml"), (JSON, "p.json")]),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 6), st.sampled_from([*PIECES, *"\"'{}[],=#", '"""', "'''"]))
    ),
)
def test_mutated_document_is_read_or_refused(original: tuple[str, str], edits: list[tuple[int, int, str]]) -> None:
    """Cut and paste in a valid file makes a document or a ConfigError that names the file, never a crash."""
    text, name = original
    for at, cut, paste in edits:
        text = text[:at] + paste + text[at + cut :]
    try:
        document = parse_document(text, name)
    except ConfigError as error:
        assert error.where.startswith(name)  # noqa: PT017
        return
    assert isinstance(document, PolicyDocument)
    lines = text.count("\n") + 1
    assert all(rule.source.line is not None and 1 <= rule.source.line <= lines for rule in document.rules)


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from("/.%2eE5cFf;a*|?é \\"), max_size=30).map("".join)))
def test_canonical_path_is_total_idempotent_and_free_of_dots(raw: str) -> None:
    """Any text is a path without dot segments, or a 400."""
    for path in (raw, "/" + raw):
        try:
            found = canonical_path(path)
        except ProtocolError as error:
            assert error.status == 400  # noqa: PT017
            continue
        assert canonical_path(found) == found
        assert found == "*" or found[0] == "/"
        assert not {".", ".."} & set(found.split("/"))
        assert "//" not in found
        assert found.isascii()


@given(
    st.lists(st.sampled_from(["a", "b", "*", "a*", "*b", "a*b", "**", ""]), min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "b", "ab", "aab", ""]), min_size=1, max_size=7),
)
def test_path_patterns_equal_the_naive_reading(pattern: list[str], path: list[str]) -> None:
    """Greedy search without backtracking finds what exhaustive search finds."""
    from exeat.policy.path import path_matches

    one, two = "/" + "/".join(pattern), "/" + "/".join(path)
    assert path_matches(one, two) is naive_path(one, two)


@given(st.integers(0, 2**128 - 1), st.integers(0, 128))
def test_ipv6_networks_round_trip(number: int, prefix: int) -> None:
    """Any IPv6 network is a rule, and its text reads back."""
    network = IPv6Network((number >> (128 - prefix) << (128 - prefix), prefix))
    rule = parse_rule(f"[{network}]", HERE)
    assert parse_rule(rule.text, HERE) == rule
