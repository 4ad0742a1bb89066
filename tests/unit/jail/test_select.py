"""Kinds of jail: each is a line and a module, and what was asked for is never replaced by another."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest

from exeat.errors import JailError
from exeat.jail.select import AUTO, BODIES, choose, examine, open_jail


@pytest.mark.parametrize("kind", BODIES)
def test_a_kind_is_a_module_with_a_jail_in_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"exeat.jail.bodies.{kind}")
    monkeypatch.setattr("exeat.jail.bodies.seatbelt.check_here", lambda: None)
    jail = module.open_jail()
    for step in ("build", "release", "attend", "close"):
        assert callable(getattr(jail, step)), step
    assert callable(module.examine)


@pytest.mark.parametrize("kind", ["netns", "nft", "env"])
def test_a_jail_that_was_not_built_can_be_closed_and_again(kind: str) -> None:
    jail = open_jail(BODIES[kind])
    jail.close()
    jail.close()


@pytest.mark.parametrize(
    ("platform", "uid", "expected"),
    [("linux", 1000, ["netns"]), ("linux", 0, ["netns", "nft"]), ("darwin", 0, ["seatbelt"])],
)  # fmt: skip
def test_what_is_taken_by_itself(platform: str, uid: int, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Never `env`, which is no boundary."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert [body.kind for body in choose(AUTO)] == expected


@pytest.mark.parametrize(("platform", "kind"), [("freebsd14", AUTO), ("darwin", "nft"), ("linux", "seatbelt")])
def test_a_jail_of_another_system_is_an_error(platform: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(JailError, match=r"needs (Linux|macOS)"):
        choose(kind)


def test_what_was_asked_for_is_the_only_one_tried() -> None:
    for kind in ("netns", "nft", "env"):
        assert [body.kind for body in choose(kind)] == [kind]


def test_an_examination_says_what_it_is() -> None:
    assert examine("env").why == "variables only: not a boundary"
    assert not examine("seatbelt").ok
