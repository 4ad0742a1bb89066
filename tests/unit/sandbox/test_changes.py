"""`allow`, `block`, `reset`: what they do to a list, what they say, and that they keep their promises."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.policy import (
    Decision,
    Source,
    Target,
    build_policy,
    canonical_host,
    decide,
    judge_address,
    parse_rule,
)
from exeat.policy.rule import Rule, denial_covers, ports_meet
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.changes import Change, allow, block, reset, store_rule
from exeat.sandbox.folder import SandboxFolder, default_allowlist
from exeat.sandbox.typed import read_allow
from tests.support.examples import examples


def put(folder: SandboxFolder, *rules: str) -> None:
    Path(folder.allowlist_path).write_text("".join(f"{each}\n" for each in rules))


def lines(folder: SandboxFolder) -> list[str]:
    return read_allowlist(folder).text.splitlines()


REST = ["!.a.test:1-79", "!.a.test:81-442", "!.a.test:444-65535"]  # of all ports, without those of the web


def rule(text: str) -> Rule:
    return parse_rule(text, Source("test"))


def test_allow_stores_the_name_with_its_subdomains(folder: SandboxFolder) -> None:
    """And says so. A second time nothing changes."""
    assert allow(folder, ["github.com"]) == Change(("added .github.com: github.com and its subdomains",), True)
    assert allow(folder, ["github.com"]) == Change((".github.com is already allowed by line 1 (.github.com)",), False)
    assert allow(folder, ["=api.github.com"]).changed is False
    assert allow(folder, ["=api.github.com:22"]).changed
    assert lines(folder) == [".github.com", "api.github.com:22"]


def test_allow_stores_nothing_if_one_of_the_texts_is_wrong(folder: SandboxFolder) -> None:
    """All are read before anything is stored."""
    with pytest.raises(ConfigError):
        allow(folder, ["good.test", "https://evil.test/"])
    with pytest.raises(ConfigError):
        block(folder, ["good.test", "!evil.test"])
    assert lines(folder) == []


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (["!.a.test"], "a.test", [".a.test"]),
        (["!a.test"], "a.test", [".a.test"]),
        (["# no", "!.a.test # x", "b.test"], "a.test", ["# no", "b.test", ".a.test"]),
        (["!.a.test:*"], "a.test", [".a.test"]),
        (["!.a.test:22"], "a.test:22", [".a.test:22"]),
        (["!10.0.0.1"], "10.0.0.1", ["10.0.0.1"]),
        (["!.b.a.test", ".a.test"], "b.a.test", [".a.test"]),
        (["!.a.test:*"], "a.test:*", [".a.test:*"]),
        (["!.a.test:22", "!a.test"], "a.test:*", [".a.test:*"]),
        (["!*:*"], "* force", ["* force"]),
        # The rest of a wider denial stays: other ports were not asked for.
        (["!.a.test"], "a.test:443", ["!.a.test:80", ".a.test:443"]),
        (["!.a.test:20-30"], "a.test:22", ["!.a.test:20-21", "!.a.test:23-30", ".a.test:22"]),
        (["!.a.test:*", ".a.test:22"], "a.test", [".a.test:22", *REST, ".a.test"]),
        (["!.a.test:*", *REST, ".a.test:22"], "a.test", [*REST, ".a.test:22", ".a.test"]),
        (["!1.2.3.4:*", "a.test:22"], "1.2.3.4:443", ["a.test:22", "!1.2.3.4:1-442", "!1.2.3.4:444-65535",
                                                      "1.2.3.4:443"]),
        (["!1.2.3.4:*", "a.test"], "1.2.3.4", ["a.test", "1.2.3.4"]),
    ],
)  # fmt: skip
def test_allow_takes_back_what_block_stored(
    before: list[str], text: str, after: list[str], folder: SandboxFolder
) -> None:
    """The same text allows what it blocked, and nothing is left that denies it."""
    put(folder, *before)
    change = allow(folder, [text])
    assert change.still == ()
    assert lines(folder) == after


@pytest.mark.parametrize(
    ("before", "text", "still"),
    [
        (["", "", "!.good.test"], "a.good.test", "line 3 (!.good.test) still denies it"),
        (["!.a.test"], "=a.test", "line 1 (!.a.test) still denies it"),
        (["!*:*"], "10.0.0.1:22", "line 1 (!*:*) still denies it"),
        (["!*:443"], "10.0.0.1", "line 1 (!*:443) still denies a part of it"),
        # It denies the address as well.
        (["!*:*", "10.0.0.1:22"], "*:* force", "line 1 (!*:*) still denies it"),
        (["!*", "10.0.0.1:22"], "* force", "line 1 (!*) still denies it"),
        (["!.a.test:443"], "a.test", "line 1 (!.a.test:443) still denies a part of it"),
        (["!.a.test methods=POST"], "a.test", "line 1 (!.a.test methods=POST) still denies a part of it"),
    ],
)
def test_allow_says_what_still_denies_it(before: list[str], text: str, still: str, folder: SandboxFolder) -> None:
    """A wider denial is not taken away: more than was asked for would come free with it."""
    put(folder, *before)
    change = allow(folder, [text])
    assert change.still == (still,)
    assert lines(folder)[: len(before)] == before


def test_allow_says_what_stays_denied_inside_it(folder: SandboxFolder) -> None:
    """Denials of a part were meant, and are no failure. Of many, some are named."""
    put(folder, "!*.x.test:400-500", "!y.test", "!a.x.test:22", "!10.0.0.1")
    change = allow(folder, [".x.test"])
    assert change == Change(
        ("added .x.test", "line 1 (!*.x.test:400-500) still denies what lies inside it"), True
    )  # fmt: skip
    assert allow(folder, ["10.0.0.0/8"]).said[1:] == ("line 4 (!10.0.0.1) still denies what lies inside it",)
    put(folder, *(f"!{number}.x.test" for number in range(9)))
    said = allow(folder, [".x.test"]).said
    assert len(said) == 7
    assert said[-1] == "and so do 4 more denials"


def test_allow_reckons_with_rules_of_running_commands(folder: SandboxFolder) -> None:
    """They are besides the list. What they allow stays denied, and what they deny is said."""
    put(folder, "!.a.test:*")
    assert allow(folder, ["a.test"], [rule("a.test:22")]).still == ()
    assert lines(folder) == [*REST, ".a.test"]
    put(folder, "!*:*")
    assert allow(folder, ["*:* force"], [rule("10.0.0.1:22")]).still == ("line 1 (!*:*) still denies it",)
    assert lines(folder)[0] == "!*:*"
    put(folder, "!*:*")
    assert store_rule(folder, "*:* force", [rule("10.0.0.1:22")]).still == ("line 1 (!*:*) still denies it",)
    put(folder)
    assert allow(folder, ["a.test"], [rule("!.test")]).still == (
        "!.test, a rule of a running command, still denies it",
    )


def test_allow_while_a_command_lets_through_what_no_rule_lists(folder: SandboxFolder) -> None:
    """Then only denials hold it back: all that was not typed stays denied."""
    put(folder, "!.a.test:*", "!*:*")
    assert allow(folder, ["a.test", "* force"], unlisted=True).changed
    assert lines(folder) == ["!*:*", *REST, ".a.test", "* force"]
    put(folder, "!*:*")
    assert store_rule(folder, "*:* force", unlisted=True).still == ("line 1 (!*:*) still denies it",)


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ([".a.test"], "a.test", []),
        (["a.test"], "a.test", []),
        (["a.test # x", "# y", ".a.test", "a.test:22 private"], "a.test", ["# y"]),
        (["a.test", "a.test:22"], "a.test:22", ["a.test"]),
        ([".a.test"], "=a.test", [".a.test", "!a.test"]),
        ([".a.test"], "b.a.test", [".a.test", "!.b.a.test"]),
        ([".a.test:*"], "b.a.test", [".a.test:*", "!.b.a.test:*"]),
        (["b.a.test"], "a.test", ["b.a.test", "!.a.test"]),
        (["*.a.test"], "a.test", ["*.a.test", "!.a.test"]),
        ([".a.test methods=GET"], "a.test methods=GET", []),
        ([".a.test"], "a.test methods=POST", [".a.test", "!.a.test methods=POST"]),
        ([], "a.test", ["!.a.test"]),
        (["!.test"], "a.test", ["!.test"]),
        (["a.test", "!.test"], "a.test", ["!.test"]),
        (["10.0.0.0/8"], "10.0.0.1", ["10.0.0.0/8", "!10.0.0.1"]),
        (["10.0.0.1"], "10.0.0.1", []),
        # A name that is allowed may lead there, and an IPv6 address may carry it.
        (["10.0.0.1", "a.test"], "10.0.0.1", ["a.test", "!10.0.0.1"]),
        (["10.0.0.1", "a.test:22"], "10.0.0.1", ["a.test:22", "!10.0.0.1:*"]),
        (["10.0.0.1", "a.test:22"], "10.0.0.1:443", ["10.0.0.1", "a.test:22", "!10.0.0.1:443"]),
        (["10.0.0.0/8:80", "[64:ff9b::/96]"], "10.0.0.0/8", ["[64:ff9b::/96]", "!10.0.0.0/8"]),
        (["* force", "10.0.0.1:22"], "*", ["10.0.0.1:22", "!*:*"]),
        (["!.a.test", ".a.test:22"], "a.test", ["!.a.test"]),
        (["!.a.test", ".test:22 force"], "a.test", ["!.a.test", ".test:22 force", "!.a.test:*"]),
    ],
)
def test_block(before: list[str], text: str, after: list[str], folder: SandboxFolder) -> None:
    """Rules for just that host go; if anything else would allow it, a denial comes. Comments stay."""
    put(folder, *before)
    change = block(folder, [text])
    assert lines(folder) == after
    assert change.changed == (before != after)


def test_block_says_what_it_did(folder: SandboxFolder) -> None:
    """Which rule would still allow it, whether one of the list or one of a running command."""
    put(folder, ".github.com")
    assert block(folder, ["gist.github.com"]).said == (
        "added !.gist.github.com: otherwise line 1 (.github.com) would allow it",
    )
    assert block(folder, ["gist.github.com"]) == Change(
        (".gist.github.com is already denied by line 2 (!.gist.github.com)",), False
    )
    assert block(folder, ["never.test"]).said == ("added !.never.test: no rule allowed it before",)
    put(folder, ".a.test")
    assert block(folder, ["a.test"], [rule("a.test:22")]).said == (
        "removed .a.test",
        "added !.a.test:*: otherwise a.test:22, a rule of a running command, would allow it",
    )
    put(folder, ".a.test")
    assert block(folder, ["a.test"], [rule("!a.test"), rule("b.test")]).said == ("removed .a.test",)
    put(folder, ".a.test")
    assert block(folder, ["a.test"], unlisted=True).said == (
        "removed .a.test",
        "added !.a.test:*: otherwise a running command that learns, asks or is not understood could let it through",
    )
    assert block(folder, ["a.test"], unlisted=True).said == (".a.test:* is already denied by line 1 (!.a.test:*)",)
    put(folder, "a.test", "1.2.3.4")
    assert block(folder, ["1.2.3.4"]).said[1] == (
        "added !1.2.3.4: otherwise names that line 1 (a.test) allows could lead there"
    )
    put(folder, "a.test", "1.2.0.0/16")
    assert block(folder, ["1.2.3.4"]).said == ("added !1.2.3.4: otherwise line 2 (1.2.0.0/16) would allow it",)


RULES = ["a.test", ".a.test", "*.a.test", "b.a.test", ".b.a.test:22", "a.test:22", "* force", ".test force"]
RULES += ["1.2.3.4", "1.2.0.0/16:*", "1.2.3.4:22", "[64:ff9b::102:304]:*", "!a.test", "!.a.test:*", "!b.a.test:22"]
RULES += ["a.test methods=GET", "!.a.test methods=GET", "!*", "!*:*", "!1.2.3.4", "!1.2.0.0/16:*", "!.a.test:20-30"]
TYPED = ["a.test", "=a.test", ".a.test", "*.a.test", "b.a.test", "a.test:22", "=b.a.test:22", "a.test:*"]
TYPED += ["1.2.3.4", "1.2.0.0/16", "1.2.3.4:22", "1.2.3.4:*", "* force", "*:* force"]
HOSTS = ["a.test", "b.a.test", "c.b.a.test", "other.name", "1.2.3.4", "1.2.9.9", "[64:ff9b::102:304]"]
PORTS = (80, 443, 22, 8443)

Place = tuple[str, str, int]  # a host, the address it leads to, a port
PLACES: list[Place] = [
    (host, address, port)
    for host in HOSTS
    for port in PORTS
    for address in ([host.strip("[]")] if host[0] in "1[" else ["1.2.3.4", "9.9.9.9"])
]


def judged(rules: Iterable[Rule], place: Place) -> Decision:
    """Of the host, and then of where it leads."""
    host, address, port = place
    policy, target = build_policy(rules), Target(canonical_host(host), port, "GET", "/")
    return judge_address(policy, decide(policy, target), target, ip_address(address), own=False)


def allowed(folder: SandboxFolder, beside: list[Rule]) -> set[Place]:
    rules = [*read_allowlist(folder).rules, *beside]
    return {place for place in PLACES if judged(rules, place).allowed}


def not_denied(folder: SandboxFolder) -> set[Place]:
    """What a command may reach that lets itself through where no rule denies."""
    everything = [rule("*:* force"), rule("0.0.0.0/0:* private"), rule("[::/0]:* private")]
    return allowed(folder, everything)


def meant(text: str, *, ports: tuple[int, ...], deny: bool = False) -> set[Place]:
    """The places that a text is about, as a person reads it. A denial also covers what leads to an address."""
    head, _, port = text.partition(" ")[0].lstrip("=").partition(":")
    hosts = {
        "a.test": {"a.test", "b.a.test", "c.b.a.test"}, ".a.test": {"a.test", "b.a.test", "c.b.a.test"},
        "*.a.test": {"b.a.test", "c.b.a.test"}, "b.a.test": {"b.a.test", "c.b.a.test"},
        "1.2.3.4": {"1.2.3.4"}, "1.2.0.0/16": {"1.2.3.4", "1.2.9.9"},
        "*": set(HOSTS) if deny else {host for host in HOSTS if host[0] not in "1["},
    }[head]  # fmt: skip
    hosts = {head} if text.startswith("=") else hosts
    numbers = PORTS if port == "*" else (int(port),) if port else ports
    leads = {"1.2.3.4", "64:ff9b::102:304"} if deny and head.startswith("1.2") else set()
    return {place for place in PLACES if (place[0] in hosts or place[1] in leads) and place[2] in numbers}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(200))
@given(
    st.lists(st.sampled_from(RULES), max_size=5),
    st.sampled_from(TYPED),
    st.lists(st.sampled_from(RULES), max_size=2),
    st.booleans(),
)
def test_promises(folder: SandboxFolder, before: list[str], text: str, beside: list[str], unlisted: bool) -> None:
    """After `block X` nothing of X is allowed, on any port unless X has one, nor anything that leads to X. After
    `allow X` all of X is, or `still` says why not, and nothing beyond X is that was not before. `unlisted`: not even
    where a command lets through what no rule denies."""
    others = [rule(each) for each in beside]
    put(folder, *before)
    was = allowed(folder, others)
    block(folder, [text], others, unlisted=unlisted)
    now = allowed(folder, others)
    blocked = meant(text, ports=PORTS, deny=True)
    assert not now & blocked
    assert now <= was
    assert not unlisted or not not_denied(folder) & blocked

    put(folder, *before)
    was, free = allowed(folder, others), not_denied(folder)
    change = allow(folder, [text], others, unlisted=unlisted)
    now = allowed(folder, others)
    asked = meant(text, ports=(80, 443))
    typed = read_allow(text, 1).rule
    for deny in (each for each in (*read_allowlist(folder).rules, *others) if each.deny):
        if denial_covers(deny.pattern, typed.pattern) and ports_meet(deny.ports, typed.ports):
            assert any(deny.text in each for each in change.still)
        else:  # a denial of a part of it stays, and the user wrote it for that part
            asked -= {place for place in asked if judged([deny], place).rule or leads_to(deny, place)}
    assert asked <= now or change.still
    # Who takes the denial of an address back takes it back for what leads there, on the same ports.
    freed = meant(text, ports=(80, 443)) | (meant(text, ports=(80, 443), deny=True) if "1.2" in text else set())
    assert now - was <= freed
    assert was <= now
    assert not unlisted or not_denied(folder) - free <= freed


def leads_to(deny: Rule, place: Place) -> bool:
    """Whether it is where the place leads that is denied."""
    return judged([deny, rule("*:* force")], place).rule == deny


def test_what_was_blocked_can_be_allowed_again(folder: SandboxFolder) -> None:
    """The same text back and forth allows what it did, whatever else is in the list."""
    for before in ([".a.test"], [], [".test:22 force", "b.test"]):
        for text in ("x.a.test", "a.test", "=a.test", "1.2.3.4", "1.2.3.4:22", "a.test:*"):
            put(folder, *before)
            allow(folder, [text])
            allowed_first = allowed(folder, []) & meant_exactly(text)
            for _ in range(2):
                block(folder, [text])
                assert allow(folder, [text]).still == ()
                assert allowed(folder, []) & meant_exactly(text) == allowed_first


def meant_exactly(text: str) -> set[Place]:
    """The places that a rule of this text is about."""
    typed = read_allow(text, 1).rule
    return {place for place in PLACES if judged([typed], place).allowed}


def test_store_rule_stores_exactly_this_rule(folder: SandboxFolder) -> None:
    """An answer that is to hold. The opposite of it goes."""
    assert store_rule(folder, "api.x.test") == Change(("added api.x.test",), True)
    assert store_rule(folder, "api.x.test") == Change(("api.x.test is already in the list",), False)
    assert store_rule(folder, "!api.x.test").said == ("removed api.x.test", "added !api.x.test")
    assert store_rule(folder, "api.x.test:22").still == ()
    assert store_rule(folder, "api.x.test").said == ("removed !api.x.test", "added api.x.test")
    put(folder, "!.x.test")
    assert store_rule(folder, "api.x.test").still == ("line 1 (!.x.test) still denies it",)
    with pytest.raises(ConfigError):
        store_rule(folder, "a.test\nevil.test")


def test_reset_returns_to_the_default_list_whatever_was_there(folder: SandboxFolder) -> None:
    """From a list that cannot be read as well, or that is gone; with `empty`, to no rule at all."""
    path = Path(folder.allowlist_path)
    path.write_text("this is no list")
    assert reset(folder).changed
    assert path.read_text() == default_allowlist()
    assert not reset(folder).changed
    path.unlink()
    assert reset(folder, empty=True) == Change(("the list is empty: nothing is allowed",), True)
    assert path.read_text() == ""
