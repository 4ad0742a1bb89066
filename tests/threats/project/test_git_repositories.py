"""A repository in the project's own: `git status` looks into what the index says is one, and does as that says."""

from __future__ import annotations

import subprocess

import pytest

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
