"""What is found in a project that would run outside later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.files.project import protected
from exeat.files.project.git_folder import find_git_folder, read_settings
from exeat.files.project.protected import NAMES, Protected, find_protected
from tests.unit.files.project.repositories import git_folder, make


def names(paths: tuple[str, ...], root: Path) -> set[str]:
    return {os.path.relpath(path, os.path.realpath(root)) for path in paths}


def held(root: Path, **more: object) -> set[str]:
    return names(find_protected(str(root), **more).held, root)  # type: ignore[arg-type]


def test_settings_at_the_top_are_held_and_missing_ones_must_not_be_made(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    make(tmp_path / ".envrc")
    make(tmp_path / "Makefile")
    make(tmp_path / "deep/.vscode/tasks.json")
    found = find_protected(str(tmp_path))
    assert names(found.held, tmp_path) == {".vscode", ".envrc"}
    assert names(found.absent, tmp_path) == set(NAMES) - {".vscode", ".envrc"}
    assert found.fatal == ()


def test_what_was_named_to_be_written_is_neither(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    git_folder(tmp_path / ".git")
    writable = [f"{tmp_path}/.claude", f"{tmp_path}/.git/hooks", f"{tmp_path}/.idea"]
    found = find_protected(str(tmp_path), writable=writable)
    assert names(found.held, tmp_path) == {".git/config"}
    assert ".idea" not in names(found.absent, tmp_path)


def test_the_folder_above_does_not_name_what_is_in_it(tmp_path: Path) -> None:
    git_folder(tmp_path / ".git")
    assert held(tmp_path, writable=[str(tmp_path), f"{tmp_path}/.git"]) == {".git/config", ".git/hooks"}


def test_a_repository(tmp_path: Path) -> None:
    git_folder(tmp_path / ".git", hooks=False)
    found = find_protected(str(tmp_path))
    assert names(found.held, tmp_path) == {".git/config"}
    assert {".git/hooks", ".git/config.worktree"} <= names(found.absent, tmp_path)
    assert names(found.fatal, tmp_path) == {".git/commondir"}


def test_other_work_trees_and_submodules_and_theirs(tmp_path: Path) -> None:
    git = git_folder(tmp_path / ".git")
    make(git / "worktrees/other/commondir", "../..\n")
    make(git / "worktrees/other/gitdir", "/elsewhere/.git\n")
    git_folder(git / "modules/group/lib", "[core]\n\tworktree = ../../../../group/lib\n")
    git_folder(git / "modules/group/lib/modules/inner", "[core]\n\tworktree = ../../../../../../group/lib/inner\n")
    make(tmp_path / "group/lib/.git", "gitdir: ../../.git/modules/group/lib\n")
    make(tmp_path / "group/lib/inner/.git", "gitdir: ../../../.git/modules/group/lib/modules/inner\n")
    modules = (".git/modules/group/lib", ".git/modules/group/lib/modules/inner")
    assert held(tmp_path) == {
        ".git/config",
        ".git/hooks",
        ".git/worktrees/other/commondir",
        ".git/worktrees/other/gitdir",
        "group/lib/.git",
        "group/lib/inner/.git",
        *(f"{module}/{name}" for module in modules for name in ("config", "hooks")),
    }
    found = find_protected(str(tmp_path))
    assert names(found.fatal, tmp_path) == {f"{each}/commondir" for each in (".git", *modules)}
    assert ".git/worktrees/other/config.worktree" in names(found.absent, tmp_path)


def test_a_root_that_is_a_folder_of_gits_itself(tmp_path: Path) -> None:
    git_folder(tmp_path)
    assert held(tmp_path) == {"config", "hooks"}


def test_repositories_one_level_below(tmp_path: Path) -> None:
    git_folder(tmp_path / "one/.git")
    git_folder(tmp_path / "bare.git")
    git_folder(tmp_path / "a/b/.git")
    assert held(tmp_path) == {"one/.git/config", "one/.git/hooks", "bare.git/config", "bare.git/hooks"}


def test_too_many_repositories_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "MAX_REPOSITORIES", 2)
    for name in ("a", "b", "c"):
        git_folder(tmp_path / name / ".git")
    found = find_protected(str(tmp_path))
    assert names(found.left_out, tmp_path) == {"c"}
    assert len(found.held) == 4


def test_links_are_held_and_so_is_where_they_lead_in_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "shared/claude").mkdir(parents=True)
    (root / ".claude").symlink_to("shared/claude")
    (root / ".vscode").symlink_to(tmp_path)
    (root / ".idea").symlink_to("missing")
    (root / ".cursor").symlink_to(".cursor")
    found = find_protected(str(root))
    assert names(found.held, root) == {".claude", "shared/claude", ".vscode", ".idea", ".cursor"}
    assert "missing" in names(found.absent, root)


def test_a_git_folder_elsewhere_in_the_root(tmp_path: Path) -> None:
    git_folder(tmp_path / "store")
    make(tmp_path / ".git", "gitdir: store\n")
    assert held(tmp_path) == {".git", "store/config", "store/hooks"}


def test_a_git_folder_outside_is_left_alone(tmp_path: Path) -> None:
    git_folder(tmp_path / "store")
    make(tmp_path / "root/.git", f"gitdir: {tmp_path}/store\n")
    assert held(tmp_path / "root") == {".git"}


def test_other_folders_for_hooks_and_files_with_settings(tmp_path: Path) -> None:
    root = tmp_path / "root"
    config = '[core] hooksPath = .githooks ; ours\n[include]\n\tpath = "../.gitconfig"\n[other]\n\tpath = src\n'
    git_folder(root / ".git", config)
    make(root / ".githooks/pre-commit")
    make(root / ".gitconfig")
    make(root / "src/file")
    make(root / "tools/hooks/post-merge")
    make(tmp_path / "home/.gitconfig", "[core]\n\thookspath = tools/hooks\n")
    expected = {".git/config", ".git/hooks", ".githooks", ".gitconfig", "tools/hooks"}
    assert held(root, home=str(tmp_path / "home")) == expected


def test_settings_are_read_from_plain_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_settings(str(tmp_path / "fifo")) == {}
    assert read_settings(str(tmp_path)) == {}
    assert read_settings(str(tmp_path / "missing")) == {}


def test_a_file_as_root_has_nothing_in_it(tmp_path: Path) -> None:
    assert find_protected(str(make(tmp_path / "file"))) == Protected((), (), ())


def test_a_git_folder_knows_its_work_tree_or_is_not_believed(tmp_path: Path) -> None:
    main = git_folder(tmp_path / "main/.git")
    make(main / "worktrees/x/HEAD")
    make(main / "worktrees/x/commondir", "../..\n")
    make(main / "worktrees/x/gitdir", f"{tmp_path}/x/.git\n")
    for name in ("x", "stranger"):
        make(tmp_path / name / ".git", f"gitdir: {main}/worktrees/x\n")
    found = find_git_folder(str(tmp_path / "x"))
    assert found is not None
    assert found.path == os.path.realpath(main / "worktrees/x")
    assert found.common == os.path.realpath(main)
    assert found.knows(str(tmp_path / "x"))
    assert not found.knows(str(tmp_path / "stranger"))
