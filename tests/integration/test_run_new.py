"""`exeat run --name` where there is no such sandbox: a slip makes none, a word or a person does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.programs import Finished
from tests.support.runs.agent import make_home
from tests.support.runs.running import ANYWHERE, environment, exeat, folder_of, run_argv

RAN = ["echo", "it ran"]


@pytest.fixture
def home() -> Iterator[Path]:
    with folder_of(None) as folder:
        yield make_home(folder, None)


def run(home: Path, *options: str) -> Finished:
    return exeat(*options, command=RAN, env=environment(EXEAT_HOME=str(home)), cwd=ANYWHERE)


def sandboxes(home: Path) -> list[str]:
    folder = home / "sandboxes"
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []


def listed(home: Path, name: str) -> str:
    return (home / "sandboxes" / name / "allowlist.txt").read_text()


def test_a_name_that_is_not_there_is_an_error_that_says_how_to_make_one(home: Path) -> None:
    assert run(home, "--new", "--name", "work").stdout == "it ran\n"  # the control
    done = run(home, "--name", "wrok")
    assert (done.status, done.stdout) == (2, "")
    assert "there is no sandbox wrok" in done.stderr
    assert "did you mean work?" in done.stderr
    assert "exeat run --new --name wrok" in done.stderr
    assert sandboxes(home) == ["work"]
    assert run(home, "--name", "work").stdout == "it ran\n"


def test_new_makes_it_and_takes_what_is_there(home: Path) -> None:
    for stderr in ("exeat: sandbox work is new; its list is the shipped one: exeat proxy list --name work\n", ""):
        assert run(home, "--new", "--name", "work") == Finished(0, "it ran\n", stderr)
    assert "pypi.org" in listed(home, "work")


def test_empty_makes_one_without_rules(home: Path) -> None:
    """Again it is no error as long as nothing is allowed; after that it would say something untrue."""
    assert "its list is empty" in run(home, "--empty", "--name", "bare").stderr
    assert listed(home, "bare") == ""
    assert run(home, "--empty", "--name", "bare") == Finished(0, "it ran\n", "")
    (home / "sandboxes" / "bare" / "allowlist.txt").write_text("a.test\n")
    done = run(home, "--empty", "--name", "bare")
    assert (done.status, done.stdout) == (2, "")
    assert "its list has 1 rule" in done.stderr
    assert "exeat proxy reset --empty --name bare" in done.stderr
    assert listed(home, "bare") == "a.test\n"


@pytest.mark.parametrize("option", ["--new", "--empty"])
def test_without_a_name_there_is_nothing_to_make(option: str, home: Path) -> None:
    done = run(home, option)
    assert (done.status, done.stdout) == (2, "")
    assert "--name N" in done.stderr


@pytest.mark.parametrize(
    ("keys", "made"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("\x04", False)]
)
def test_a_person_is_asked(keys: str, made: bool, home: Path) -> None:
    assert run(home, "--empty", "--name", "work").status == 0
    with Terminal(environment(EXEAT_HOME=str(home)), cwd=ANYWHERE) as terminal:
        job = terminal.start(run_argv(["--name", "wrok"], RAN))
        terminal.wait_for("exeat: there is no sandbox wrok (there are: work; did you mean work?).")
        terminal.wait_for("rules that exeat comes with? [y/N] ")
        terminal.type(keys)
        assert terminal.wait(job) == ("exited", 0 if made else 2)
        assert ("it ran" in terminal.text) is made
    assert sandboxes(home) == (["work", "wrok"] if made else ["work"])


def test_a_person_whose_input_goes_to_the_command_is_not_asked(home: Path) -> None:
    """What is piped to the command is not an answer."""
    with Terminal(environment(EXEAT_HOME=str(home)), cwd=ANYWHERE) as terminal:
        job = terminal.start(["sh", "-c", 'echo y | "$@"', "sh", *run_argv(["--name", "work"], RAN)])
        assert terminal.wait(job) == ("exited", 2)
        assert "[y/N]" not in terminal.text
    assert sandboxes(home) == []
