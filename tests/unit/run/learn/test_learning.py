"""The policy that is learned: it parses, it allows what was let through, and it allows nothing else."""

from __future__ import annotations

import asyncio
import json
import tomllib
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.audit.record import Record
from exeat.gateway.gateway import Gateway
from exeat.policy import (
    Address,
    AddressClass,
    Name,
    Policy,
    Reason,
    Source,
    Target,
    build_policy,
    canonical_host,
    classify,
    decide,
    judge_address,
    parse_document,
    parse_host_mapping,
    parse_rule,
    rule_to_allow,
)
from exeat.policy.address import parse_private_network
from exeat.policy.document import parse_listing
from exeat.run.learn import learning
from exeat.run.learn.learning import Learning
from tests.support.examples import examples

HERE = Source("test")
PUBLIC = "93.184.216.34"
FORMS = pytest.mark.parametrize("form", ["toml", "txt"])


class Fake:
    """A gateway that lets through what is public, as far as its events tell."""

    def __init__(self, *rules: str, hosts: tuple[str, ...] = (), networks: tuple[str, ...] = ()) -> None:
        mapped = [parse_host_mapping(text, HERE) for text in hosts]
        declared = [parse_private_network(text, HERE) for text in networks]
        self.policy = build_policy([parse_rule(text, HERE) for text in rules], mapped, declared)
        self.learning = Learning(self)

    def events(self, *, max_queued: int = 0) -> Any:
        raise NotImplementedError

    def tell(self, event: str, **fields: Any) -> None:
        standard: dict[str, Any] = {"protocol": "connect", "method": "CONNECT", "port": 443, "verdict": "allow"}
        body = Record(**(standard | fields)).encode(event)
        self.learning.take(json.loads(f'{{"seq":1,"chain":"",{body}}}'))

    def ask(self, where: str, port: int, method: str = "CONNECT", address: str = PUBLIC, path: str = "/") -> bool:
        """One request, as the gateway decides and records it while learning. Returns whether it was let through."""
        host = canonical_host(where)
        target = Target(host, port) if method == "CONNECT" else Target(host, port, method, path)
        decision = decide(self.policy, target)
        inside = isinstance(host, Address) and classify(host.ip) is not AddressClass.PUBLIC
        askable = decision.reason in (Reason.NOT_LISTED, Reason.ADDRESS_NOT_LISTED, Reason.PORT_NOT_LISTED)
        if askable and not inside:
            rule = parse_rule(rule_to_allow(target), HERE)
            self.policy = self.policy.with_rules((*self.policy.rules, rule))
            self.learning.take({"event": "grant", "rule": rule.text, "by": "learn"})
            decision = decide(self.policy, target)
        if decision.allowed:
            ip = host.ip if isinstance(host, Address) else (*self.policy.mapped(host), ip_address(address))[0]
            address = str(ip)
            judged = judge_address(self.policy, decision, target, ip, own=False)
            decision = judged if not judged.allowed else decision  # the rule on record is the first one
        fields: dict[str, Any] = {
            "host": host.text,
            "port": port,
            "method": method,
            "address": address if decision.allowed or decision.reason is Reason.PRIVATE_ADDRESS else "",
            "rule": decision.rule.text if decision.rule is not None else "",
            "reason": decision.reason,
            "verdict": "allow" if decision.allowed else "deny",
        }
        self.tell("decision", **fields)
        if decision.allowed:
            self.tell("end", sent=1_500, received=2_000_000, **fields)
        return decision.allowed

    def text(self, form: str = "toml", command: tuple[str, ...] = ("curl", "a b")) -> str:
        return self.learning.policy_text(command, form)

    def rules(self) -> list[str]:
        rules: list[str] = tomllib.loads(self.text())["allow"]
        return rules


def parsed(text: str, form: str, *hosts: str) -> Policy:
    """By the parsers that `--policy` uses."""
    if form == "txt":
        return build_policy(parse_listing(text, "x.txt"), [parse_host_mapping(each, HERE) for each in hosts])
    document = parse_document(text, "x.toml")
    return build_policy(document.rules, document.hosts, document.private_networks)


# Rules


def test_hosts_and_ports_are_exact() -> None:
    """Both web ports need no port, one of them does, and a run of ports is one rule."""
    gateway = Fake(".wide.test")
    for host, port in (
        ("a.test", 443),
        ("b.test", 80),
        ("b.test", 443),
        ("sub.wide.test", 443),
        *(("c.test", port) for port in (8000, 8001, 8002, 9000, 80)),
        ("93.184.216.35", 443),
        ("2606:4700::1", 8443),
    ):
        assert gateway.ask(host, port)
    assert gateway.rules() == [
        "a.test:443",
        "b.test",
        "c.test:80",
        "c.test:8000-8002",
        "c.test:9000",
        "sub.wide.test:443",
        "[2606:4700::1]:8443",
        "93.184.216.35:443",
    ]


def test_comments_say_how_much_and_what_is_new() -> None:
    """Counts and bytes, and which would have been blocked without learning."""
    gateway = Fake("known.test")
    gateway.ask("known.test", 443)
    gateway.ask("known.test", 443)
    gateway.ask("new.test", 443)
    assert gateway.text().splitlines() == [
        "# Learned by exeat from this command:",
        "#   curl 'a b'",
        "# It allows what the command reached, and nothing else. Read it, then use it:",
        "#   exeat run --policy FILE -- COMMAND",
        "allow = [",
        '  "known.test:443",  # 2x, 3.0 kB sent, 4.0 MB received',
        '  "new.test:443",  # 1x, 1.5 kB sent, 2.0 MB received; would have been blocked',
        "]",
    ]
    assert gateway.text("txt").splitlines()[4:] == [
        "known.test:443  # 2x, 3.0 kB sent, 4.0 MB received",
        "new.test:443  # 1x, 1.5 kB sent, 2.0 MB received; would have been blocked",
    ]


def test_what_the_given_rule_says_is_kept() -> None:
    """Options, methods and paths: the learned rule is never wider than the one that let it through."""
    options = "private allow_sni_mismatch methods=GET paths=/x/** max_upload=1000"
    gateway = Fake(f".a.test {options}", "*.b.test:* no-intercept", "* force")
    gateway.ask("sub.a.test", 80, "GET", path="/x/y")
    gateway.ask("x.b.test", 22)
    gateway.ask("other.test", 80)
    assert gateway.rules() == ["other.test:80", f"sub.a.test:80 {options}", "x.b.test:22 no-intercept"]


def test_a_long_rule_is_found_though_its_record_is_cut() -> None:
    """Its options are those of the rule, not those of as much of it as fits into a record."""
    long = f"a.test paths={'|'.join(f'/{letter * 60}' for letter in 'abcdefg')}"
    gateway = Fake(long)
    gateway.ask("a.test", 80, "GET", path=f"/{'g' * 60}")
    assert gateway.rules() == [long.replace("a.test", "a.test:80")]


def test_a_rule_that_is_gone_is_not_guessed_at() -> None:
    """What its options were is not known, so nothing is allowed, and that is said."""
    gateway = Fake("a.test")
    gateway.tell("decision", host="a.test", rule="a.test:443 methods=GET", reason="allowed")
    assert gateway.rules() == []
    assert "# Not in it:\n#   a.test:443 was allowed by a rule that no longer exists" in gateway.text()


@FORMS
def test_inside_addresses_stay_reachable_as_they_were(form: str) -> None:
    """By `private`, by a mapping, by an address rule next to the name, or by another rule for the name."""
    gateway = Fake(
        "p.test private", "m.test", "n.test", "10.0.0.0/8", "o.test:443", ".o.test private",
        hosts=("m.test:127.0.0.1",),
    )  # fmt: skip
    assert gateway.ask("p.test", 443, address="192.168.0.1")
    assert gateway.ask("m.test", 443)
    assert gateway.ask("n.test", 443, address="10.1.2.3")
    assert gateway.ask("o.test", 443, address="192.168.0.2")
    assert gateway.ask("10.9.9.9", 443)
    text = gateway.text(form)
    again = parsed(text, form, "m.test:127.0.0.1")
    for host, address in (("p", "192.168.0.1"), ("m", "127.0.0.1"), ("n", "10.1.2.3"), ("o", "192.168.0.2")):
        target = Target(Name(f"{host}.test"), 443)
        decision = decide(again, target)
        assert judge_address(again, decision, target, ip_address(address), own=False).allowed, text
    assert decide(again, Target(Address(ip_address("10.9.9.9")), 443)).allowed
    assert not decide(again, Target(Address(ip_address("10.9.9.8")), 443)).allowed
    target = Target(Name("n.test"), 443)
    assert not judge_address(again, decide(again, target), target, ip_address("169.254.169.254"), own=False).allowed
    assert "m.test" in text
    assert "127.0.0.1" in text


@FORMS
def test_names_that_lead_to_declared_networks_are_learned(form: str) -> None:
    """Without `private`, which would allow more; and what the next run needs for that is said."""
    gateway = Fake(networks=("10.1.0.0/16", "10.2.0.0/16"))
    assert gateway.ask("inside.test", 443, address="10.1.2.3")
    assert gateway.ask("a.test", 443)
    assert not gateway.ask("other.test", 443, address="10.3.2.1")
    assert gateway.rules() == ["a.test:443", "inside.test:443"]
    text = gateway.text(form)
    if form == "txt":
        assert "#   --private-network 10.1.0.0/16" in text
    else:
        assert [str(network) for network in parsed(text, form).private_networks] == ["10.1.0.0/16"]
    assert "10.2.0.0/16" not in text


@FORMS
def test_given_denials_still_hold(form: str) -> None:
    """Those that take away some requests or some addresses are written, and what is denied by now is not allowed."""
    gateway = Fake(".a.test", "!.a.test methods=DELETE", "!10.0.0.0/8", "!other.test", "!*:25")
    gateway.ask("x.a.test", 443)
    gateway.ask("x.a.test", 80, "GET")
    gateway.ask("late.test", 443)
    gateway.policy = build_policy((*gateway.policy.rules, parse_rule("!late.test", HERE)))
    text = gateway.text(form)
    again = parsed(text, form)
    denied = sorted(rule.text for rule in again.rules if rule.deny)
    assert denied == ["!.a.test methods=DELETE", "!10.0.0.0/8"]
    assert not decide(again, Target(Name("late.test"), 443)).allowed
    assert "late.test:443 was reached, and is denied now: !late.test" in text


@FORMS
def test_what_was_refused_is_told_and_not_allowed(form: str) -> None:
    """Inside addresses, metadata, names that lead inside, and deny rules: in comments only."""
    gateway = Fake("!evil.test")
    for host, address in (
        ("169.254.169.254", PUBLIC),
        ("10.0.0.1", PUBLIC),
        ("rebind.test", "127.0.0.1"),
        ("evil.test", PUBLIC),
    ):
        assert not gateway.ask(host, 80, address=address)
    gateway.tell(
        "decision", host="looked-up.test", protocol="dns", method="A", port=53, verdict="deny", reason="not-listed"
    )
    text = gateway.text(form)
    assert not [rule for rule in parsed(text, form).rules if not rule.deny]
    assert [line for line in text.splitlines() if line.startswith("#   ")][2:] == [
        "#   10.0.0.1:80  1x  an address that is not public (private)",
        "#   169.254.169.254:80  1x  an address that is not public (metadata)",
        "#   evil.test:80  1x  denied by !evil.test",
        "#   rebind.test:80  1x  leads to 127.0.0.1, which is not public",
    ]
    assert "looked-up" not in text


def test_tunnels_that_were_looked_into_count_by_their_requests() -> None:
    """The tunnel itself carries nothing; without a request in it that is said."""
    gateway = Fake("a.test methods=GET", "b.test methods=GET")
    for host in ("a.test", "b.test"):
        gateway.tell("decision", host=host, rule=f"{host} methods=GET", reason="intercepted")
    gateway.tell("decision", host="a.test", rule="a.test methods=GET", reason="allowed", method="GET")
    gateway.tell("end", host="a.test", rule="a.test methods=GET", reason="allowed", method="GET", received=7)
    gateway.ask("dead.test", 443)
    text = gateway.text()
    assert '"a.test:443 methods=GET",  # 1x, 0 B sent, 7 B received' in text
    assert '"b.test:443 methods=GET",  # no request got through' in text


def test_a_place_that_never_answered_is_marked() -> None:
    gateway = Fake()
    gateway.learning.take({"event": "grant", "rule": "a.test", "by": "learn"})
    gateway.tell("decision", host="a.test", rule="a.test", reason="allowed")
    gateway.tell("end", host="a.test", rule="a.test", reason="allowed", status=502, note="dns_error")
    assert '"a.test:443",  # 1x, nothing came back; would have been blocked' in gateway.text()


# Bounds and hostile texts


def test_more_places_than_are_kept_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and no one takes a part for the whole."""
    monkeypatch.setattr(learning, "MAX_PLACES", 3)
    monkeypatch.setattr(learning, "_MAX_REFUSED", 3)
    gateway = Fake("* force")
    for number in range(5):
        gateway.ask(f"h{number}.test", 443)
        gateway.ask(f"10.0.0.{number}", 443)
    gateway.learning.take({"event": "gap", "lost": 4})
    text = gateway.text()
    assert gateway.rules() == ["h0.test:443", "h1.test:443", "h2.test:443"]
    assert (
        "# NOT COMPLETE: 2 requests went to more places than the 3 in it.\n# NOT COMPLETE: 4 events were lost" in text
    )
    assert "#   and 2 more; --audit FILE records all\n" in text


HOSTILE = (
    "evil.test\nallow = ['* force']",
    'a"]\nx',
    "x\r!y",
    "\u2028* force",
    "\x1b[2J",
    "'''",
    "# x",
    "é",
    "\x7f",
    "*",
)


@FORMS
@settings(max_examples=examples(100))
@given(host=st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40)), word=st.text(max_size=20))
def test_hostile_texts_stay_where_they_are(form: str, host: str, word: str) -> None:
    """Whatever a command is called, asks for, or is refused for: the text parses to what it was, and is plain."""
    gateway = Fake("a.test")
    gateway.ask("a.test", 443)
    gateway.tell("decision", host=host, port=80, verdict="deny", reason=word, rule=host, address=word)
    gateway.tell("decision", host=host, port=80, rule=word, reason="allowed")
    text = gateway.text(form, command=("sh", "-c", host, word))
    assert all(char == "\n" or 32 <= ord(char) < 127 for char in text)
    rules = [rule.text for rule in parsed(text, form).rules]
    assert "a.test:443" in rules
    assert len(rules) == 1


def test_a_long_command_is_cut() -> None:
    assert max(map(len, Fake().text(command=("x" * 5_000,)).splitlines())) < 250


def test_nothing_reached_is_a_policy_too() -> None:
    """It allows nothing."""
    assert parsed(Fake().text(), "toml").rules == ()
    assert parsed(Fake().text("txt"), "txt").rules == ()


# For any run

HOSTS = ("a.test", "b.a.test", "c.b.a.test", "other.test", "93.184.216.34", "10.0.0.7", "2606:4700::1")
PORTS = (22, 80, 81, 443, 8000, 8001)
GIVEN = (
    "a.test", ".a.test:443", "*.a.test methods=GET", "b.a.test:80 paths=/x/**", "!c.b.a.test", "!.a.test methods=POST",
    "!.a.test:80 paths=/y", "10.0.0.0/8", "10.0.0.7:22", "a.test private", "* force", "!10.0.0.0/24:8000",
    "other.test:8000-8001", "*.a.test:* max_upload=10 private",
)  # fmt: skip
requests = st.tuples(
    st.sampled_from(HOSTS),
    st.sampled_from(PORTS),
    st.sampled_from(("CONNECT", "GET", "POST")),
    st.sampled_from((PUBLIC, "10.0.0.7")),
    st.sampled_from(("/", "/x/z", "/y")),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    given_rules=st.lists(st.sampled_from(GIVEN), max_size=5),
    asked=st.lists(requests, max_size=8),
    form=st.sampled_from(("toml", "txt")),
)
def test_it_allows_what_was_let_through_and_nothing_else(given_rules: list[str], asked: list[Any], form: str) -> None:
    """What was let through passes again. Nothing passes that goes to another place, or that was denied."""
    gateway = Fake(*given_rules)
    through = [request for request in asked if gateway.ask(*request)]
    again = parsed(gateway.text(form), form)
    reached = {(host, port) for host, port, *_ in through}
    # Where a name led inside because of an address rule, that rule is needed as well.
    reached |= {
        (address, port) for host, port, _, address, _ in through if canonical_host(host) != canonical_host(address)
    }
    for host, port, method, address, path in through:
        target = Target(canonical_host(host), port, *(() if method == "CONNECT" else (method, path)))
        decision = decide(again, target)
        assert decision.allowed, (host, port, gateway.text(form))
        ip = target.host.ip if isinstance(target.host, Address) else ip_address(address)
        assert judge_address(again, decision, target, ip, own=False).allowed, (host, port, gateway.text(form))
    for host in (*HOSTS, "x.a.test", "test", "10.0.0.8"):
        for port in (*PORTS, 23, 8002):
            for target in (Target(canonical_host(host), port), Target(canonical_host(host), port, "POST", "/y")):
                if decide(again, target).allowed:
                    assert (host, port) in reached, (host, port, gateway.text(form))
                    assert decide(gateway.policy, target).allowed, (target, gateway.text(form))


def test_it_follows_a_gateway_to_its_end() -> None:
    """The events of a gateway from the start on, the last ones included, which come with its end."""

    async def follow() -> str:
        gateway = Gateway(build_policy([parse_rule("a.test", HERE)]))
        await gateway.start()
        learner = Learning(gateway)
        learner.start()
        gateway.grant(parse_rule("b.test", HERE), "learn")
        for host in ("a.test", "b.test"):
            record = Record(host=host, port=443, rule=host, reason="allowed", verdict="allow", method="CONNECT")
            gateway.state.journal.append(record.encode("decision"))
            record.received = 5
            gateway.state.journal.append(record.encode("end"))
        await gateway.aclose()
        await learner.stop()
        await learner.stop()
        return learner.policy_text(["x"], "txt")

    assert asyncio.run(follow()).splitlines()[4:] == [
        "a.test:443  # 1x, 0 B sent, 5 B received",
        "b.test:443  # 1x, 0 B sent, 5 B received; would have been blocked",
    ]
