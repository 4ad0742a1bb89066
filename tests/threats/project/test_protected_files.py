"""What runs outside later is protected in the project as well: hooks, settings of git, of editors and of agents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.project import Project
from tests.support.runs.running import BY_USER, Running, as_user, exeat, folder_of, python

pytestmark = pytest.mark.threat("T-M1")

TRY = """
import os, sys
def plant(path):
    with open(path, "a") as file:
        file.write("planted")
def swap(path):
    os.rename(path, path + "-away")
def replace(path):
    plant("draft")
    os.replace("draft", path)
def remove(path):
    os.unlink(path)
def link(path):
    os.link(path, "second")
    plant("second")
for each in sys.argv[1:]:
    how, path = each.split("=", 1)
    try:
        globals()[how](path)
        print(each)
    except OSError:
        pass
"""


@pytest.fixture
def project(uid: int | None) -> Iterator[Project]:
    with folder_of(uid) as folder:
        yield Project(folder, uid)


# Each by every way that there is: in place, by another file, by moving what leads there, by a second name.
TRIES = [
    "plant=.git/config",
    "replace=.git/config",
    "remove=.git/config",
    "link=.git/config",
    "plant=.git/hooks/pre-commit",
    "swap=.git/hooks",
    "plant=.vscode/tasks.json",
    "plant=.vscode/settings.json",
    "swap=.vscode",
    "replace=.mcp.json",
    "swap=.git",
]


@BY_USER
def test_nothing_that_runs_outside_later_can_be_changed(project: Project) -> None:
    done = project.run(python(TRY, *TRIES, "plant=file"))
    assert (done.status, done.stdout) == (0, "plant=file\n")
    outside = exeat(argv=[*as_user(project.uid), *python(TRY, *TRIES)], cwd=project.folder)
    # Outside all of it can be done, but for what is not there any more.
    assert set(TRIES) - set(outside.stdout.split()) <= {"link=.git/config", "plant=.vscode/settings.json"}


@BY_USER
def test_new_ones_do_not_stay(project: Project) -> None:
    """And are renamed while the command runs: it waits until they are."""
    script = (
        "mkdir .idea .claude; echo x > .envrc; ln -s /etc/passwd .cursor; "
        "while [ -e .idea ] || [ -e .claude ] || [ -e .envrc ] || [ -L .cursor ]; do sleep 0.01; done; "
        "mkdir kept; mkdir .husky"
    )
    done = project.run(["sh", "-c", script])
    assert done.status == 0, done.stderr
    names = {".idea", ".claude", ".envrc", ".cursor", ".husky"}
    found = {path.name for path in project.folder.iterdir()}
    assert not names & found
    assert {f"{name}.exeat-blocked" for name in names} | {"kept"} <= found
    for name in names:
        assert f"{project.folder}/{name} was made while the command ran, and is now" in done.stderr


@BY_USER
def test_what_is_named_can_be_changed(project: Project) -> None:
    done = project.run(["sh", "-c", "echo x > .vscode/tasks.json && git config a.b c"], "--write", ".vscode")
    assert "could not write config file" in done.stderr
    assert (project.folder / ".vscode/tasks.json").read_text() == "x\n"
    done = project.run(["sh", "-c", "echo x >> .git/hooks/post-commit"], "--write", ".git/hooks")
    assert done.status == 0
    assert (project.folder / ".git/hooks/post-commit").read_text() == "x\n"


@BY_USER
def test_git_cannot_be_led_to_other_settings(project: Project) -> None:
    script = (
        "mkdir evil; cp -r .git/. evil; echo '[core] fsmonitor = ./x' >> evil/config; echo ../evil > .git/commondir"
    )
    done = project.run(["sh", "-c", f"{script}; sleep 60"])
    assert done.status != 0
    assert "makes git read its settings from elsewhere" in done.stderr
    assert not (project.folder / ".git/commondir").exists()
    assert project.git("config", "--get", "core.fsmonitor", outside=True, check=False) == ""


@BY_USER
def test_who_goes_on_making_them_has_none_in_the_end(project: Project) -> None:
    """Also where the run ends because of it: the last look comes after the last process."""
    program = """
import os
for _ in range(3):
    os.fork()
while True:
    for name in (".git/commondir", ".idea"):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
"""
    done = project.run(python(program))
    assert "makes git read its settings from elsewhere" in done.stderr
    assert not (project.folder / ".git/commondir").exists()
    assert not (project.folder / ".idea").exists()


@BY_USER
def test_what_git_replaces_outside_is_held_again(project: Project, tmp_path: Path) -> None:
    script = (
        "echo ready; while ! grep -q outside .git/config; do sleep 0.01; done; "
        "while [ -w .git/config ]; do sleep 0.01; done; echo x >> .git/config; echo end"
    )
    command = ["sh", "-c", script]
    with Running(tmp_path, command=command, uid=project.uid, cwd=project.folder, env=project.environ) as running:
        running.wait_for("ready")
        project.git("config", "user.name", "outside", outside=True)
        running.wait_for("end")
        running.wait()
        assert "Read-only file system" in running.errors
        assert f"{project.folder}/.git/config was replaced while the command ran" in running.errors
    assert project.git("config", "user.name", outside=True) == "outside\n"


@BY_USER
def test_a_hidden_file_that_an_editor_replaces_is_hidden_again(project: Project, tmp_path: Path) -> None:
    (project.folder / ".env").write_text("first secret")
    project.own()
    script = (
        "cat .env; echo ready; while [ ! -e go ]; do sleep 0.01; done; "
        "while grep -q secret .env; do sleep 0.01; done; cat .env; echo end"
    )
    settings: dict[str, Any] = {"uid": project.uid, "cwd": project.folder, "env": project.environ}
    with Running(tmp_path, "--hide", ".env", command=["sh", "-c", script], **settings) as running:
        running.wait_for("ready")
        draft = project.folder / "draft"
        draft.write_text("second secret")
        draft.chmod(0o644)
        draft.rename(project.folder / ".env")
        (project.folder / "go").touch()
        running.wait_for("end")
        assert "secret" not in running.out


@BY_USER
def test_a_new_repository_is_named(project: Project) -> None:
    done = project.run(["git", "init", "-q", "sub"])
    assert f"{project.folder}/sub has a git repository that is new" in done.stderr
    assert (project.folder / "sub/.git").is_dir()
    assert project.run(["git", "commit", "-q", "--allow-empty", "-m", "x"]).stderr == ""


PLANT = """
set -e
git init -q sub
cd sub
git commit -q --allow-empty -m x
git config core.fsmonitor 'touch ../../planted; false'
cd ..
git add sub 2>/dev/null
"""


@BY_USER
def test_git_status_starts_nothing_that_a_new_submodule_says(project: Project) -> None:
    planted = project.folder.parent / "planted"
    argv = [*as_user(project.uid), "sh", "-c", PLANT]
    assert exeat(argv=argv, cwd=project.folder, env=project.environ).status == 0
    project.git("status", "--short", outside=True)
    assert planted.exists()  # without exeat it is started
    planted.unlink()
    project.git("reset", "-q", outside=True)
    shutil.rmtree(project.folder / "sub")
    done = project.run(["sh", "-c", PLANT])
    assert f"{project.folder}/sub/.git has settings or hooks that start programs outside" in done.stderr
    project.git("status", "--short", outside=True, check=False)
    assert not planted.exists()
