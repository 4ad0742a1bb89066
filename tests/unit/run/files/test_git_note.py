"""What is said if commits would not reach the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.run.files.project_guard import note_on_repository
from tests.unit.files.project.repositories import git_folder, make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def test_nothing_for_a_repository_that_is_shared(folder: Path) -> None:
    git_folder(folder / ".git")
    assert note_on_repository(str(folder), [str(folder)]) == ""


def test_nothing_where_there_is_none(folder: Path) -> None:
    assert note_on_repository(str(folder), [str(folder)]) == ""


def test_a_folder_in_a_repository(folder: Path) -> None:
    git_folder(folder / ".git")
    (folder / "a/b").mkdir(parents=True)
    here = str(folder / "a/b")
    assert f"--write {folder}/.git" in note_on_repository(here, [here])
    assert note_on_repository(here, [here, str(folder / ".git")]) == ""


def test_another_work_tree_names_the_repository(folder: Path) -> None:
    main = git_folder(folder / "main/.git")
    make(main / "worktrees/x/HEAD")
    make(main / "worktrees/x/commondir", "../..\n")
    make(main / "worktrees/x/gitdir", f"{folder}/x/.git\n")
    make(folder / "x/.git", f"gitdir: {main}/worktrees/x\n")
    assert f"--write {main}" in note_on_repository(str(folder / "x"), [str(folder / "x")])


def test_a_submodule(folder: Path) -> None:
    module = git_folder(folder / ".git/modules/lib", "[core]\n\tworktree = ../../../lib\n")
    make(folder / "lib/.git", "gitdir: ../.git/modules/lib\n")
    assert f"--write {module}" in note_on_repository(str(folder / "lib"), [str(folder / "lib")])


def test_a_file_that_names_a_stranger_is_not_believed(folder: Path) -> None:
    """Or a project could have its user share any repository with it."""
    git_folder(folder / "private/.git")
    make(folder / "x/.git", f"gitdir: {folder}/private/.git\n")
    said = note_on_repository(str(folder / "x"), [str(folder / "x")])
    assert "does not know of it" in said
    assert "--write" not in said
