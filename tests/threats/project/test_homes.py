"""A home directory is not shared because it is the working directory, whatever HOME says, and whoever's it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.files import homes
from exeat.run.files import seen_files
from exeat.run.files.seen_files import see_files
from exeat.run.settings import Preparations, RunSettings, make_plan
from tests.support.runs.owned import owned
from tests.support.runs.running import BY_USER

pytestmark = pytest.mark.threat("T-M8")

_STATE = "cd ~/.local/state/exeat; ls -A | wc -l; mkdir x; cd ..; mv exeat y; mv ../../.local ../../x; true"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the account, though HOME says another."""
    found = Path(os.path.realpath(tmp_path)) / "accounts" / "me"
    (found / "project").mkdir(parents=True)
    accounts = tmp_path / "passwd"
    accounts.write_text(f"me:x:{os.geteuid()}:{os.getegid()}::{found}:/bin/sh\n")
    monkeypatch.setattr(homes, "ACCOUNTS", str(accounts))
    monkeypatch.setattr(homes, "HOMES", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    (tmp_path / "another").mkdir()
    return found


def _shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(seen_files, "say", lambda _: None)
    seen = see_files(make_plan(RunSettings(["true"]), Preparations()))
    seen.close()
    return list(seen.view.shared)


def test_the_accounts_own_is_not_shared(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shared(home, monkeypatch) == []


def test_a_folder_above_it_is_not_shared(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shared(home.parent, monkeypatch) == []


def test_a_folder_in_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    assert _shared(home / "project", monkeypatch) == [str(home / "project")]


@BY_USER
def test_a_shared_folder_may_have_the_state_in_it(uid: int | None) -> None:
    """Its log is hidden, too, and lies in what is hidden already."""
    with owned(uid) as someone:
        first = someone.inside("true", options=["--new", "--name", "w"])
        done = someone.inside("sh", "-c", _STATE, options=["--name", "w", "--write", str(someone.home)])
        names = {each.name for each in (someone.home / ".local" / "state" / "exeat").iterdir()}
    assert first.status == 0, first.stderr
    assert (done.status, done.stdout) == (0, "0\n"), done.stderr
    assert "sandboxes" in names, "the control: outside, there is something"
