"""Repositories that a command made."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from exeat.files import new_repositories as module
from exeat.files.new_repositories import new_repositories
from tests.unit.files.test_project import git_folder, make

LATER = time.time() + 1_000_000


def test_new_ones_are_named_to_some_depth(tmp_path: Path) -> None:
    for name in ("a/.git", "b/bare.git", "c/d/e/.git", "c/d/e/f/.git"):
        git_folder(tmp_path / name)
    found = new_repositories(str(tmp_path), 0, ())
    assert [os.path.relpath(path, tmp_path) for path in found] == ["a", "b/bare.git", "c/d/e"]


def test_older_ones_are_not_and_commits_change_nothing(tmp_path: Path) -> None:
    git_folder(tmp_path / "a/.git")
    assert new_repositories(str(tmp_path), LATER, ()) == []


def test_a_time_that_was_set_back_does_not_help(tmp_path: Path) -> None:
    config = git_folder(tmp_path / "a/.git") / "config"
    os.utime(config, (1, 1))
    assert new_repositories(str(tmp_path), time.time() - 10, ()) == [str(tmp_path / "a")]


def test_what_was_held_is_known(tmp_path: Path) -> None:
    git = git_folder(tmp_path / ".git")
    assert new_repositories(str(tmp_path), 0, {f"{git}/config", f"{git}/hooks"}) == []


def test_a_file_that_leads_elsewhere_counts(tmp_path: Path) -> None:
    git = git_folder(tmp_path / ".git")
    make(tmp_path / "sub/.git", f"gitdir: {git}\n")
    found = new_repositories(str(tmp_path), 0, {f"{git}/config", f"{git}/hooks"})
    assert found == [str(tmp_path / "sub")]


def test_the_search_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_FOLDERS", 3)
    for number in range(5):
        git_folder(tmp_path / f"{number}/.git")
    assert len(new_repositories(str(tmp_path), 0, ())) == 2
