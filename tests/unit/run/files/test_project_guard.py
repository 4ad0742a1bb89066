"""What must not come to be in a project is renamed, and what is replaced is held again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.errors import ConfigError, JailError
from exeat.jail.files.holding import Holdings, Place
from exeat.run.files import project_guard
from exeat.run.files.project_guard import ProjectGuard, guard_projects


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "project"
    for name in ("objects", "refs", "hooks"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git/config").touch()
    return folder


@pytest.fixture
def held_again(monkeypatch: pytest.MonkeyPatch) -> list[Holdings]:
    """How often the jail was asked to hold what is open."""
    found: list[Holdings] = []

    def hold_again(holdings: Holdings, *_: Any) -> str:
        found.append(holdings)
        return ""

    monkeypatch.setattr(project_guard, "hold_again", hold_again)
    return found


@pytest.fixture
def guard(project: Path, held_again: list[Holdings]) -> Iterator[ProjectGuard]:
    holdings, notes = guard_projects([str(project)], [str(project)], (), "")
    assert notes == []
    made = ProjectGuard(holdings, [], "heap", "blank")
    yield made
    made.close()


def test_what_is_decided_for_a_project(project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/local.json").touch()
    holdings, _ = guard_projects([str(project)], [str(project)], [f"{project}/.claude/local.json"], "")
    root = str(project)
    assert holdings.read_only == tuple(
        Place(root, f"{root}/{name}") for name in (".claude", ".git/config", ".git/hooks")
    )
    assert holdings.still_writable == (Place(root, f"{root}/.claude/local.json"),)
    assert holdings.pinned == (Place(root, f"{root}/.git"),)
    assert holdings.fatal == (f"{root}/.git/commondir",)
    assert f"{root}/.vscode" in holdings.absent


def test_what_is_not_shared_is_not_held(project: Path, tmp_path: Path) -> None:
    holdings, _ = guard_projects([str(project)], [str(tmp_path / "elsewhere")], (), "")
    assert holdings.read_only == ()


def test_a_folder_that_cannot_be_looked_at_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(project_guard, "find_protected", refuse)
    with pytest.raises(ConfigError, match="cannot find what to protect"):
        guard_projects([str(project)], [str(project)], (), "")


def test_new_ones_are_renamed_at_once_and_said_at_the_end(guard: ProjectGuard, project: Path) -> None:
    (project / ".vscode").mkdir()
    (project / ".vscode/tasks.json").write_text("mine")
    (project / "src").mkdir()
    guard.attend()
    assert sorted(path.name for path in project.iterdir()) == [".git", ".vscode.exeat-blocked", "src"]
    assert (project / ".vscode.exeat-blocked/tasks.json").read_text() == "mine"
    said = guard.sweep()
    assert said[0] == f"{project}/.vscode was made while the command ran, and is now .vscode.exeat-blocked"
    assert len(said) == 2


def test_a_link_is_renamed_and_not_followed(guard: ProjectGuard, project: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (project / ".idea").symlink_to(tmp_path / "precious")
    guard.attend()
    assert (project / ".idea.exeat-blocked").readlink() == tmp_path / "precious"
    assert (tmp_path / "precious").is_dir()


def test_nothing_is_replaced_by_renaming(guard: ProjectGuard, project: Path) -> None:
    for number in range(3):
        (project / ".envrc").write_text(str(number))
        guard.attend()
    found = [path.read_text() for path in project.glob(".envrc.exeat-blocked*")]
    assert sorted(found) == ["0", "1", "2"]


def test_the_last_look_finds_what_came_in_the_end(guard: ProjectGuard, project: Path) -> None:
    """By then nothing can come any more, and no news is needed."""
    (project / ".envrc").touch()
    (project / ".git/commondir").write_text("/evil")
    assert len(guard.sweep()) == 3
    assert not (project / ".envrc").exists()
    assert not (project / ".git/commondir").exists()


def test_a_folder_that_was_closed_is_opened_for_it(guard: ProjectGuard, project: Path) -> None:
    (project / ".envrc").touch()
    project.chmod(0o555)
    try:
        assert len(guard.sweep()) == 2
        assert not (project / ".envrc").exists()
        assert project.stat().st_mode & 0o777 == 0o555
    finally:
        project.chmod(0o755)


def test_where_git_is_led_to_other_settings_the_run_ends(guard: ProjectGuard, project: Path) -> None:
    (project / ".git/commondir").write_text("../evil")
    with pytest.raises(JailError, match="makes git read its settings from elsewhere"):
        guard.attend()
    assert not (project / ".git/commondir").exists()


def test_who_goes_on_and_on_is_ended(guard: ProjectGuard, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_guard, "_MAX_BLOCKED", 2)
    for _ in range(2):
        (project / ".envrc").touch()
        guard.attend()
    (project / ".envrc").touch()
    with pytest.raises(JailError, match="keeps making"):
        guard.attend()


def test_what_is_replaced_is_held_again_and_said(
    guard: ProjectGuard, project: Path, held_again: list[Holdings]
) -> None:
    """As `git config` does it outside."""
    (project / ".git/config.lock").write_text("[user]")
    guard.attend()
    assert held_again == []
    (project / ".git/config.lock").rename(project / ".git/config")
    guard.attend()
    assert len(held_again) == 1
    assert guard.sweep() == [
        f"{project}/.git/config was replaced while the command ran, which may have changed it; look"
    ]


def test_where_it_cannot_be_held_again_the_run_ends(
    guard: ProjectGuard, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_guard, "hold_again", lambda *_: "why not")
    (project / ".git/config").unlink()
    (project / ".git/config").touch()
    with pytest.raises(JailError, match="can no longer be protected"):
        guard.attend()


def test_where_there_is_nothing_new_nothing_is_said(guard: ProjectGuard, project: Path) -> None:
    (project / "file").touch()
    guard.attend()
    assert guard.sweep() == []


def make_repository(folder: Path, config: str) -> None:
    for name in ("objects", "refs"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git/HEAD").touch()
    (folder / ".git/config").write_text(config)


def test_a_new_repository_is_named(guard: ProjectGuard, project: Path) -> None:
    make_repository(project / "sub", "[core]\n\tbare = false\n")
    assert guard.sweep() == [f"{project}/sub has a git repository that is new, or has new settings or hooks: look"]
    assert (project / "sub/.git").is_dir()


def test_a_new_repository_that_would_start_programs_is_renamed(guard: ProjectGuard, project: Path) -> None:
    make_repository(project / "sub", "[core]\n\tfsmonitor = ./evil\n")
    (said,) = guard.sweep()
    assert said.startswith(
        f"{project}/sub/.git has settings or hooks that start programs outside, and is now .git.exeat"
    )
    assert [path.name.partition("-")[0] for path in (project / "sub").iterdir()] == [".git.exeat"]


def test_a_run_that_fails_is_swept_all_the_same(
    project: Path, held_again: list[Holdings], capsys: pytest.CaptureFixture[str]
) -> None:
    guard = ProjectGuard(guard_projects([str(project)], [str(project)], (), "")[0], [], "heap", "blank")
    (project / ".envrc").touch()
    guard.close()
    assert not (project / ".envrc").exists()
    assert ".envrc was made while the command ran" in capsys.readouterr().err


def test_before_the_end_of_the_process_all_is_swept_and_what_takes_long_is_not_closed(
    guard: ProjectGuard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / ".envrc").touch()
    guard.close(process_ends=True)
    assert not (project / ".envrc").exists()
    assert ".envrc was made while the command ran" in capsys.readouterr().err
    os.fstat(guard.descriptor)
    guard.close()
    assert guard.descriptor == -1
