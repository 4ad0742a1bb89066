"""The policy that is learned: it parses, it allows what was let through, and it allows nothing else."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.policy import (
    Address,
    Name,
    Target,
    build_policy,
    decide,
    judge_address,
    parse_rule,
)
from exeat.run.learn import learning
from tests.support.examples import examples
from tests.unit.run.learn.learned import HERE, PUBLIC, Fake, parsed

FORMS = pytest.mark.parametrize("form", ["toml", "txt"])


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
