"""`allow`, `block`, `reset`: what they do to a list, what they say, and that they keep their promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.policy import Source, Target, build_policy, canonical_host, decide, parse_rule
from exeat.policy.covering import covers, ports_meet
from exeat.policy.rule import Rule
from exeat.sandbox.allowlist import default_allowlist
from exeat.sandbox.changes import Change, allow, block, reset, store_rule
from exeat.sandbox.folder import SandboxFolder
from exeat.sandbox.store import read_allowlist
from exeat.sandbox.typed import read_allow


def put(folder: SandboxFolder, *rules: str) -> None:
    Path(folder.allowlist_path).write_text("".join(f"{each}\n" for each in rules))


def lines(folder: SandboxFolder) -> list[str]:
    return read_allowlist(folder).text.splitlines()


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
    ],
)
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
        (["!.a.test:443"], "a.test", "line 1 (!.a.test:443) still denies a part of it"),
        (["!.a.test methods=POST"], "a.test", "line 1 (!.a.test methods=POST) still denies a part of it"),
        # Port 22 was denied as well, and nobody asked for that.
        (["!.a.test:*", ".a.test:22"], "a.test", "line 1 (!.a.test:*) still denies it"),
    ],
)
def test_allow_says_what_still_denies_it(before: list[str], text: str, still: str, folder: SandboxFolder) -> None:
    """A wider denial is not taken away: more than was asked for would come free with it."""
    put(folder, *before)
    change = allow(folder, [text])
    assert change.still == (still,)
    assert lines(folder)[: len(before)] == before


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
        "added !.gist.github.com: else line 1 (.github.com) would allow it",
    )
    assert block(folder, ["gist.github.com"]) == Change(
        (".gist.github.com is denied by line 2 (!.gist.github.com) already",), False
    )
    assert block(folder, ["never.test"]).said == ("added !.never.test: no rule allowed it before",)
    put(folder, ".a.test")
    assert block(folder, ["a.test"], [rule("a.test:22")]).said == (
        "removed .a.test",
        "added !.a.test:*: else a.test:22, a rule of a running command, would allow it",
    )
    put(folder, ".a.test")
    assert block(folder, ["a.test"], [rule("!a.test"), rule("b.test")]).said == ("removed .a.test",)


RULES = ["a.test", ".a.test", "*.a.test", "b.a.test", ".b.a.test:22", "a.test:22", "* force", ".test force", "10.0.0.1"]
RULES += ["10.0.0.0/8:*", "!a.test", "!.a.test:*", "!b.a.test:22", "a.test methods=GET", "!.a.test methods=GET"]
TYPED = ["a.test", "=a.test", ".a.test", "*.a.test", "b.a.test", "a.test:22", "=b.a.test:22", "10.0.0.1", "10.0.0.0/8"]
PLACES = [(host, port) for host in ("a.test", "b.a.test", "c.b.a.test", "10.0.0.1") for port in (80, 443, 22)]


def allowed(folder: SandboxFolder, beside: list[Rule]) -> set[tuple[str, int]]:
    policy = build_policy([*read_allowlist(folder).rules, *beside])
    return {
        (host, port) for host, port in PLACES if decide(policy, Target(canonical_host(host), port, "GET", "/")).allowed
    }


def denied_by(deny: Rule, host: str, port: int) -> bool:
    return bool(decide(build_policy([deny]), Target(canonical_host(host), port, "GET", "/")).rule)


def meant(text: str, *, ports: tuple[int, ...]) -> set[tuple[str, int]]:
    """The places that a text is about, as a person reads it."""
    head, _, port = text.lstrip("=").partition(":")
    hosts = {
        "a.test": {"a.test", "b.a.test", "c.b.a.test"}, ".a.test": {"a.test", "b.a.test", "c.b.a.test"},
        "*.a.test": {"b.a.test", "c.b.a.test"}, "b.a.test": {"b.a.test", "c.b.a.test"},
    }.get(head, {"10.0.0.1"})  # fmt: skip
    hosts = {head} if text.startswith("=") else hosts
    return {(host, number) for host in hosts for number in ((int(port),) if port else ports)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(RULES), max_size=5), st.sampled_from(TYPED), st.lists(st.sampled_from(RULES), max_size=2)
)
def test_promises(folder: SandboxFolder, before: list[str], text: str, beside: list[str]) -> None:
    """After `block X` nothing of X is allowed, on any port unless X has one. After `allow X` all of X is, or `still`
    says why not, and nothing beyond X is that was not before."""
    others = [rule(each) for each in beside]
    put(folder, *before)
    was = allowed(folder, others)
    block(folder, [text], others)
    now = allowed(folder, others)
    assert not now & meant(text, ports=(80, 443, 22))
    assert now <= was

    put(folder, *before)
    was = allowed(folder, [])
    change = allow(folder, [text])
    now = allowed(folder, [])
    asked = meant(text, ports=(80, 443))
    typed = read_allow(text, 1).rule
    for deny in (each for each in read_allowlist(folder).rules if each.deny):
        if covers(deny.pattern, typed.pattern) and ports_meet(deny.ports, typed.ports):
            assert any(f"({deny})" in each for each in change.still)
        else:  # a denial of a part of it stays, and the user wrote it for that part
            asked -= {(host, port) for host, port in asked if denied_by(deny, host, port)}
    assert asked <= now or change.still
    assert now - was <= meant(text, ports=(80, 443))
    assert was <= now


def test_what_was_blocked_can_be_allowed_again(folder: SandboxFolder) -> None:
    """The same text back and forth leaves the list as it was, but for the place of the rule."""
    for before in ([".a.test"], [], [".test:22 force", "b.test"]):
        for text in ("x.a.test", "a.test", "=a.test", "10.0.0.1"):
            put(folder, *before)
            allow(folder, [text])
            allowed_first = allowed(folder, [])
            block(folder, [text])
            assert allow(folder, [text]).still == () or before[:1] == [".test:22 force"]
            if before[:1] != [".test:22 force"]:
                assert allowed(folder, []) == allowed_first


def test_store_rule_stores_exactly_this_rule(folder: SandboxFolder) -> None:
    """An answer that is to hold. The opposite of it goes."""
    assert store_rule(folder, "api.x.test") == Change(("added api.x.test",), True)
    assert store_rule(folder, "api.x.test") == Change(("api.x.test was there already",), False)
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
