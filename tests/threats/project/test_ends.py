"""However a run ends, what would run outside later is not left in the project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exeat.run.files.project_guard import ProjectGuard, guard_projects
from tests.support.programs import need
from tests.support.runs.owned import Owned, git, owned
from tests.support.runs.running import BY_USER, python

pytestmark = pytest.mark.threat("T-M1")

# Sooner or later exeat has seen enough of that and ends the run. By then they have made it once more.
_ENDS_THE_RUN = """
import os
os.fork(), os.fork()
while True:
    try:
        os.mkdir(".envrc")
    except FileExistsError:
        pass
"""
_IS_USUAL = """
import os
os.mkdir(".vscode")
os.mkdir(".envrc")
"""


@pytest.fixture
def someone(uid: int | None) -> Iterator[Owned]:
    need("git")
    with owned(uid) as found:
        git(found.project, "init", "-q")
        found.give(*(found.project / ".git", *(found.project / ".git").rglob("*")))
        yield found


@BY_USER
def test_a_run_that_the_command_makes_end_leaves_nothing(someone: Owned) -> None:
    done = someone.inside(*python(_ENDS_THE_RUN))
    assert "keeps making files" in done.stderr
    assert done.status
    assert not (someone.project / ".envrc").exists(), done.stderr
    assert "/.envrc was made while the command ran" in done.stderr
    assert len(done.stderr.splitlines()) < 10, "a command cannot fill the screen with it"


@BY_USER
def test_the_usual_end(someone: Owned) -> None:
    """The control."""
    done = someone.inside(*python(_IS_USUAL))
    assert done.status == 0, done.stderr
    assert not (someone.project / ".envrc").exists()
    assert (someone.project / ".vscode.exeat-blocked").exists()


_HOSTILE_NAME = """
import os, subprocess
os.mkdir("a\\x1b[2J\\nb")
subprocess.run(["git", "init", "-q"], cwd="a\\x1b[2J\\nb", check=True)
"""


@BY_USER
def test_a_name_is_no_message_to_the_terminal(someone: Owned) -> None:
    done = someone.inside(*python(_HOSTILE_NAME))
    assert "a?[2J?b has a git repository" in done.stderr
    assert "\x1b" not in done.stderr


def test_the_end_does_not_need_a_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can use up the watches of its user."""
    holdings, _ = guard_projects([str(tmp_path)], [str(tmp_path)], (), "")
    with closing(ProjectGuard(holdings, [], "heap", "blank")) as guard:
        (tmp_path / ".envrc").touch()
        monkeypatch.setattr(guard, "attend", _no_watch_left)
        guard.sweep()
    assert not (tmp_path / ".envrc").exists()


def _no_watch_left() -> None:
    raise OSError(28, "No space left on device")


_SECOND_NAME = """
import os, sys
try:
    open(".git/config", "a").write("no")
    print("written")
except OSError as error:
    print(error.strerror)
open("second", "w").write("[core]\\n\\tfsmonitor = planted\\n")
"""


@BY_USER
def test_what_is_protected_is_not_changed_by_a_second_name(someone: Owned) -> None:
    """An earlier command made the repository, and gave its settings another name for later."""
    config, second = someone.project / ".git" / "config", someone.project / "second"
    before, owner = config.read_text(), config.stat().st_uid
    second.hardlink_to(config)
    done = someone.inside(*python(_SECOND_NAME))
    assert done.stdout == "Read-only file system\n", done.stderr
    assert "planted" in second.read_text(), "the control: it could write that"
    assert (config.read_text(), config.stat().st_uid) == (before, owner)
    assert f"{config} was changed, and is as it was" in done.stderr


_REWRITES_POLICY = """
open("second", "w").write('[[allow]]\\nhost = "planted.example"\\n')
"""


@BY_USER
def test_what_decides_about_the_command_has_no_second_name_in_its_reach(someone: Owned) -> None:
    """A command that made the file, or had it before, makes another name of it for the run that is ruled by it."""
    rules, second = someone.project / "rules.txt", someone.project / "second"
    rules.write_text("example.com\n")
    second.hardlink_to(rules)
    someone.give(rules)
    done = someone.inside(*python(_REWRITES_POLICY), options=["--policy", str(rules)])
    assert rules.read_text() == "example.com\n"
    assert (done.status, "second name" in done.stderr) == (2, True), done.stderr
    second.unlink()
    done = someone.inside("cat", str(rules), options=["--policy", str(rules)])
    assert "second name" not in done.stderr, "the control: without it, the file is hidden"
    assert done.stdout == ""


def test_what_comes_again_is_seen_whatever_the_news_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a watch was renewed, the kernel missed what came: the last news was of exeat's own renaming."""
    holdings, _ = guard_projects([str(tmp_path)], [str(tmp_path)], (), "")
    envrc = Path(holdings.absent[0]).with_name(".envrc")
    with closing(ProjectGuard(holdings, [], "heap", "blank")) as guard:
        envrc.touch()
        monkeypatch.setattr(guard, "_watch", _OldNews(str(envrc)))
        guard.attend()
    assert not envrc.exists()


class _OldNews:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> list[str]:
        return [self._path]

    def end(self) -> None:
        """There is nothing to end."""

    def close(self) -> None:
        """There is nothing to close."""
