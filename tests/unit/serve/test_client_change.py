"""Clients that are changed from inside the gateway's container: whole files, in force or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.serve.client_change import main, put, remove
from exeat.serve.client_files import load_clients


def _text(name: str, network: str, allow: str = "example.com") -> str:
    entry = {"networks": [network], "credential": f"a-long-value-for-{name}-alone", "allow": [allow]}
    return json.dumps({"clients": {name: entry}})


def test_a_client_is_put_changed_and_removed(tmp_path: Path) -> None:
    first = put(tmp_path, "one", _text("one", "10.1.0.0/16"))
    put(tmp_path, "two", _text("two", "10.2.0.0/16"))
    changed = put(tmp_path, "one", _text("one", "10.1.0.0/16", "other.example.com"))
    assert changed.keys() == {"one", "two"}
    assert changed["one"].digest != first["one"].digest
    assert remove(tmp_path, "one").keys() == {"two"}
    assert remove(tmp_path, "one").keys() == {"two"}, "again is nothing new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "two.json"]


def test_a_client_of_a_network_that_is_gone_goes_too(tmp_path: Path) -> None:
    """Its network was removed, and its addresses were given to another."""
    put(tmp_path, "old", _text("old", "10.1.0.0/16"))
    put(tmp_path, "other", _text("other", "10.2.0.0/16"))
    assert put(tmp_path, "new", _text("new", "10.1.0.0/16")).keys() == {"new", "other"}


@pytest.mark.parametrize("text", ["{", '{"clients": {"one": {}}}', _text("two", "10.9.0.0/16")])
def test_what_is_broken_changes_nothing(tmp_path: Path, text: str) -> None:
    """The last one names a client that another file has."""
    put(tmp_path, "one", _text("one", "10.1.0.0/16"))
    before = put(tmp_path, "two", _text("two", "10.2.0.0/16"))
    with pytest.raises(ConfigError):
        put(tmp_path, "one", text)
    with pytest.raises(ConfigError):
        put(tmp_path, "new", text)
    assert load_clients(str(tmp_path)) == before


def test_what_is_refused_takes_no_other_client_away(tmp_path: Path) -> None:
    """Not even one whose network the new one has: that was given back with the file."""
    put(tmp_path, "old", _text("old", "10.1.0.0/16"))
    before = put(tmp_path, "other", _text("other", "10.2.0.0/16"))
    text = _text("new", "10.1.0.0/16").replace("for-new-alone", "for-other-alone")
    with pytest.raises(ConfigError, match="the same credential"):
        put(tmp_path, "new", text)
    assert load_clients(str(tmp_path)) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "old.json", "other.json"]


def test_no_name_of_a_client_is_that_of_the_lock(tmp_path: Path) -> None:
    """Or two who write at once would hold two locks, each of them alone."""
    put(tmp_path, "one", _text("one", "10.1.0.0/16"))
    lock = (tmp_path / ".lock").stat().st_ino
    assert put(tmp_path, "lock", _text("lock", "10.2.0.0/16")).keys() == {"one", "lock"}
    assert (tmp_path / ".lock").stat().st_ino == lock


def test_the_program_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXEAT_CLIENTS", str(tmp_path))
    assert main(["set", "one", "{"]) == 1
    assert "one.json:1" in capsys.readouterr().err
    assert main(["what"]) == 1
