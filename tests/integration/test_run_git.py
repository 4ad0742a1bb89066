"""git as people use it, in a project whose settings and hooks are held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs.project import Project
from tests.support.runs.running import BY_USER, folder_of


class Repository(Project):
    """With a history, a remote next to it, and a submodule that is there."""

    def __init__(self, folder: Path, uid: int | None) -> None:
        super().__init__(folder, uid)
        self.outside("add", ".")
        self.outside("commit", "-qm", "one")
        self.outside("branch", "feature")
        self.outside("init", "-q", "-b", "main", "--bare", "../remote.git")
        self.outside("remote", "add", "origin", str(folder / "remote.git"))
        self.outside("push", "-q", "origin", "main", "feature")
        self.outside("clone", "-q", "../remote.git", "../lib")
        self.outside("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(folder / "lib"), "lib")
        self.outside("commit", "-qm", "with a submodule")
        self.outside("branch", "-D", "feature")

    def outside(self, *arguments: str) -> str:
        return self.git(*arguments, outside=True)


@pytest.fixture
def project(uid: int | None) -> Iterator[Repository]:
    with folder_of(uid) as folder:
        yield Repository(folder, uid)


WORKS = """
set -e
echo 2 >> file
git commit -qam two
git checkout -q -b local
echo 3 >> file
git stash -q
git stash pop -q
git commit -qam three
git switch -q main
git merge -q local
git checkout -q HEAD~1 -- file
git restore --staged --worktree file
git checkout -q --detach HEAD~1
git switch -q -
git checkout -q -b side HEAD~1
echo side > side
git add side
git commit -qm side
git rebase -q main
git cherry-pick --allow-empty main~1 >/dev/null 2>&1 || git cherry-pick --skip
git tag v1
git fetch -q origin
git push -q origin side
git gc -q
git worktree add -q ../other 2>/dev/null
git -C lib status --short
git status --short
git reset -q --hard main
git clean -qfd
git log --format=%s -1
"""


@BY_USER
def test_everyday_commands_work(project: Repository) -> None:
    done = project.run(["sh", "-c", WORKS], "--write", "../remote.git")
    assert (done.status, done.stdout) == (0, "three\n"), done.stderr
    assert project.outside("log", "--format=%s", "-1", "main") == "three\n"
    assert project.outside("ls-remote", "origin", "side") != ""
    assert project.outside("status", "--short") == ""


@BY_USER
def test_a_branch_of_the_remote_can_be_had_but_is_not_tracked(project: Repository) -> None:
    done = project.run(["git", "switch", "feature"])
    assert done.status == 0
    assert "could not write config file" in done.stderr
    assert project.outside("branch", "--show-current") == "feature\n"


FAILS = [
    ["git", "config", "user.name", "other"],
    ["git", "remote", "add", "other", "../x"],
    ["git", "submodule", "update"],
]


@BY_USER
@pytest.mark.parametrize("command", FAILS, ids=[each[1] for each in FAILS])
def test_what_changes_settings_fails_with_a_reason(project: Repository, command: list[str]) -> None:
    done = project.run(command)
    assert done.status != 0
    assert "could not write config file" in done.stderr


@BY_USER
def test_with_settings_that_may_be_written_it_works(project: Repository) -> None:
    done = project.run(["git", "config", "user.name", "other"], "--write", ".git/config")
    assert done.status == 0, done.stderr
    assert project.outside("config", "user.name") == "other\n"
