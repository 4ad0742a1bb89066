"""Where git finds its settings and hooks, as a hostile or an unusual repository says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.files.project.git_folder import read_settings
from exeat.files.project.protected import find_protected
from exeat.files.project.repositories import new_repositories

pytestmark = pytest.mark.threat("T-M1")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    for name in ("objects", "refs", "hooks"):
        (root / ".git" / name).mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return root


def test_hooks_that_an_included_file_names_are_protected(project: Path) -> None:
    """Teams keep common settings in the repository: `git config include.path ../.gitconfig`."""
    (project / ".git" / "config").write_text("[include]\n\tpath = ../.gitconfig\n")
    (project / ".gitconfig").write_text("[include]\n\tpath = more/settings\n[core]\n\thooksPath = .githooks\n")
    (project / "more").mkdir()
    (project / "more" / "settings").write_text("[include]\n\tpath = ../.gitconfig\n[core]\n\thooksPath = other-hooks\n")
    (project / ".githooks").mkdir()
    protected = find_protected(str(project))
    held = {str(Path(path).relative_to(project)) for path in protected.held}
    assert held == {".git/config", ".git/hooks", ".gitconfig", "more/settings", ".githooks"}
    assert f"{project}/other-hooks" in protected.absent


def test_hooks_in_a_folder_that_is_not_there_cannot_come(project: Path) -> None:
    (project / ".git" / "config").write_text("[core]\n\thooksPath = tools/git/hooks\n")
    assert f"{project}/tools" in find_protected(str(project)).absent
    (project / "tools").mkdir()
    assert f"{project}/tools/git" in find_protected(str(project)).absent, "the control: nearer if more is there"


def test_settings_of_a_work_tree_count(project: Path) -> None:
    (project / ".git" / "config").touch()
    (project / ".git" / "config.worktree").write_text("[core]\n\thooksPath = .githooks\n")
    (project / ".githooks").mkdir()
    assert f"{project}/.githooks" in find_protected(str(project)).held


def test_only_plain_files_are_opened(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a device does something to it: a watchdog restarts the machine, and root's exeat may open all of them."""
    device = project / "device"
    os.mkfifo(device)
    (project / ".git" / "config").symlink_to(device)
    opened: list[str] = []
    system_open = os.open

    def note(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if not flags & os.O_PATH:
            opened.append(os.path.realpath(path))
        return system_open(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", note)
    new_repositories(str(project), 0, ())
    find_protected(str(project))
    assert str(device) not in opened
    (project / "plain").write_text("[core]\n\thooksPath = x\n")
    assert read_settings(str(project / "plain")) == {"hookspath": ["x"]}
    assert str(project / "plain") in opened, "the control"


@pytest.mark.parametrize("line", ["hooksPath = a\0b", "worktree = a\0b"])
def test_what_is_no_path_is_none(project: Path, line: str) -> None:
    (project / ".git" / "modules" / "x" / "objects").mkdir(parents=True)
    (project / ".git" / "modules" / "x" / "refs").mkdir()
    (project / ".git" / "modules" / "x" / "HEAD").touch()
    for folder in (project / ".git", project / ".git" / "modules" / "x"):
        (folder / "config").write_text(f"[core]\n\t{line}\n[include]\n\tpath = c\0d\n")
    assert f"{project}/.git/config" in find_protected(str(project)).held
