"""Repositories in the project, and where git finds its settings and hooks, as a hostile or an unusual one says it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exeat.files.project.git_folder import read_settings
from exeat.files.project.protected import find_protected
from exeat.files.project.repositories import new_repositories
from tests.support.programs import need
from tests.support.runs.owned import Owned, owned
from tests.support.runs.running import BY_USER, python

pytestmark = pytest.mark.threat("T-M1")


_EVIL = "git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
_SETTING = "git config core.fsmonitor 'touch ~/out; false'"


def _repository(there: Owned) -> None:
    assert there.outside("git", "init", "-q").status == 0


def _ran_outside(there: Owned) -> bool:
    """Has the user's own `git status` started something?"""
    out = there.home / "out"
    out.unlink(missing_ok=True)
    there.outside("git", "status", "--short")
    return out.exists()


@BY_USER
@pytest.mark.parametrize("folder", ["sub", "a/b/c/d/e/f"], ids=["near", "deep"])
def test_a_repository_put_into_the_index(uid: int | None, folder: str) -> None:
    need("git")
    words = (
        f"mkdir -p {folder}; cd {folder}; {_EVIL}; {_SETTING}; cd {'../' * (folder.count('/') + 1)}; git add {folder}"
    )
    with owned(uid) as there:
        _repository(there)
        assert there.outside("sh", "-c", words).status == 0
        assert _ran_outside(there)
    with owned(uid) as there:
        _repository(there)
        there.inside("sh", "-c", words)
        assert not _ran_outside(there)


@BY_USER
def test_a_submodule_that_was_not_checked_out(uid: int | None) -> None:
    """It is in the index already, and the command fills its folder."""
    need("git")
    with owned(uid) as there:
        _repository(there)
        entry = f"160000,{'1' * 40},vendor/one"
        assert there.outside("git", "update-index", "--add", "--cacheinfo", entry).status == 0
        words = f"mkdir -p vendor/one; cd vendor/one; {_EVIL}; {_SETTING}"
        there.inside("sh", "-c", words)
        assert not _ran_outside(there)
        subprocess.run(["rm", "-rf", there.project / "vendor"], check=True)
        assert there.outside("sh", "-c", words).status == 0
        assert _ran_outside(there)


@BY_USER
def test_a_repository_that_was_there_gets_such_settings(uid: int | None) -> None:
    """Two levels down, where nothing is held."""
    need("git")
    words = f"cd vendor/one; {_SETTING}; cd ../..; git add vendor/one"
    with owned(uid) as there:
        _repository(there)
        assert there.outside("sh", "-c", f"mkdir -p vendor/one; cd vendor/one; {_EVIL}").status == 0
        there.inside("sh", "-c", words)
        assert not _ran_outside(there)
        assert there.outside("sh", "-c", words).status == 0
        assert _ran_outside(there)


# In each a repository `sub` is in the index, and git takes its settings from elsewhere than it seems.
_LED_ELSEWHERE = {
    "a long file": """
with open("sub/.git/config", "a") as file:
    file.write("#" * (1 << 21) + SETTING)
""",
    "common": """
os.makedirs("a/b/c/d")
shutil.copytree("sub/.git", "a/b/c/d/evil")
with open("a/b/c/d/evil/config", "a") as file:
    file.write(SETTING)
with open("sub/.git/commondir", "w") as file:
    file.write(f"{os.getcwd()}/a/b/c/d/evil\\n")
""",
    "common, by two lines": """
os.makedirs("a/b/c/d")
os.mkdir(".git\\n")
shutil.copytree("sub/.git", "a/b/c/d/evil")
with open("a/b/c/d/evil/config", "a") as file:
    file.write(SETTING)
with open("sub/.git/commondir", "w") as file:
    file.write(f"{os.getcwd()}/.git\\n/../a/b/c/d/evil\\n")
""",
    "folder, by two lines": """
os.makedirs("a/b/c/d")
shutil.copytree("sub/.git", "safe")
os.mkdir("safe\\n")
os.rename("sub/.git", "a/b/c/d/evil")
with open("a/b/c/d/evil/config", "a") as file:
    file.write(SETTING)
with open("sub/.git", "w") as file:
    file.write(f"gitdir: {os.getcwd()}/safe\\n/../a/b/c/d/evil\\n")
""",
}


@BY_USER
@pytest.mark.parametrize("how", _LED_ELSEWHERE)
def test_settings_are_where_git_finds_them(uid: int | None, how: str) -> None:
    need("git")
    words = f"mkdir sub; cd sub; {_EVIL}; cd ..; git add sub"
    begin = f"import os, shutil, subprocess\nsubprocess.run({words!r}, shell=True)"
    setting = "\n[core]\n\tfsmonitor = touch ~/out; false\n"
    program = python(f"{begin}\nSETTING = {setting!r}\n{_LED_ELSEWHERE[how]}".replace("\\\\n", "\\n"))
    with owned(uid) as there:
        _repository(there)
        assert there.outside(*program).status == 0
        assert _ran_outside(there)
    with owned(uid) as there:
        _repository(there)
        assert there.inside(*program).status == 0
        assert not _ran_outside(there)


@BY_USER
def test_a_repository_without_such_settings_stays(uid: int | None) -> None:
    need("git")
    with owned(uid) as there:
        _repository(there)
        assert there.inside("sh", "-c", f"mkdir sub; cd sub; {_EVIL}").status == 0
        assert there.outside("git", "-C", "sub", "log", "--format=%s").stdout == "x\n"


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
