"""Repositories that a command made."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from exeat.files.project import repositories as module
from exeat.files.project.repositories import NewRepository, new_repositories
from tests.unit.files.project.repositories import git_folder, make

LATER = time.time() + 1_000_000


def test_new_ones_are_named_to_some_depth(tmp_path: Path) -> None:
    for name in ("a/.git", "b/bare.git", "c/d/e/.git", "c/d/e/f/.git"):
        git_folder(tmp_path / name)
    found = new_repositories(str(tmp_path), 0, ())
    assert [os.path.relpath(path, tmp_path) for path, _, _ in found] == ["a", "b/bare.git", "c/d/e"]


def test_older_ones_are_not_and_commits_change_nothing(tmp_path: Path) -> None:
    git_folder(tmp_path / "a/.git")
    assert new_repositories(str(tmp_path), LATER, ()) == []


def test_a_time_that_was_set_back_does_not_help(tmp_path: Path) -> None:
    config = git_folder(tmp_path / "a/.git") / "config"
    os.utime(config, (1, 1))
    assert new_repositories(str(tmp_path), time.time() - 10, ()) == [
        NewRepository(str(tmp_path / "a"), ".git", is_harmless=True)
    ]


def test_what_was_held_is_known(tmp_path: Path) -> None:
    git = git_folder(tmp_path / ".git")
    assert new_repositories(str(tmp_path), 0, {f"{git}/config", f"{git}/hooks"}) == []


def test_a_file_that_leads_elsewhere_counts(tmp_path: Path) -> None:
    git = git_folder(tmp_path / ".git")
    make(tmp_path / "sub/.git", f"gitdir: {git}\n")
    found = new_repositories(str(tmp_path), 0, {f"{git}/config", f"{git}/hooks"})
    assert found == [NewRepository(str(tmp_path / "sub"), ".git", is_harmless=True)]


def test_the_search_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_FOLDERS", 3)
    for number in range(5):
        git_folder(tmp_path / f"{number}/.git")
    assert len(new_repositories(str(tmp_path), 0, ())) == 2


HARMLESS = """[core]
\trepositoryformatversion = 0
\tbare = false
[remote "origin"]
\turl = https://example.com/x.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
# a comment
"""
# Each is something that git would take for a setting which starts a program, or could.
HARMFUL = [
    "[core]\n\tfsmonitor = ./x",
    "[core] fsmonitor = ./x",
    '[remote "a"] [core] fsmonitor = ./x',
    '[remote "a]b"] fsmonitor = ./x',
    "[include]\n\tpath = x",
    "[core]\n\tfsmonitor",
    "\ufeff[core]\n\tfsmonitor = ./x",
    "[core]\n\turl = x",
    '[filter "x"]\n\tclean = ./x',
    "[remote.a]\n\turl = ./x",
]


@pytest.mark.parametrize("more", HARMFUL)
def test_what_could_start_a_program(tmp_path: Path, more: str) -> None:
    git_folder(tmp_path / "good/.git", HARMLESS)
    git_folder(tmp_path / "evil/.git", f"{HARMLESS}{more}\n")
    good, evil = sorted(new_repositories(str(tmp_path), 0, ()), key=lambda each: -each.is_harmless)
    assert good == NewRepository(str(tmp_path / "good"), ".git", is_harmless=True)
    assert evil == NewRepository(str(tmp_path / "evil"), ".git", is_harmless=False)


def test_hooks_start_programs_and_samples_of_them_do_not(tmp_path: Path) -> None:
    make(git_folder(tmp_path / "a/.git") / "hooks/pre-commit.sample")
    make(git_folder(tmp_path / "b/.git") / "hooks/post-checkout")
    assert [each.is_harmless for each in new_repositories(str(tmp_path), 0, ())] == [True, False]


def test_one_that_was_there_before_loses_its_settings_only(tmp_path: Path) -> None:
    git = git_folder(tmp_path / "a/b/.git", "[core]\n\teditor = x\n")
    description = make(git / "description")
    began = description.stat().st_ctime + 0.051
    while time.time() < began + 0.1:
        time.sleep(0.01)
    (git / "config").chmod(0o600)
    assert new_repositories(str(tmp_path), began + 0.05, ()) == [
        NewRepository(str(tmp_path / "a/b"), ".git/config", is_harmless=False)
    ]
    make(git / "hooks" / "pre-commit")
    entries = [each.entry for each in new_repositories(str(tmp_path), began + 0.05, ())]
    assert entries == [".git/config", ".git/hooks"]
