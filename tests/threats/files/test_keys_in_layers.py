"""Keys that one run was shown are not found by the next, although its layer has a copy of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.files.layers.folding import fold_layers
from exeat.files.layers.kept import layer_numbers
from exeat.sandbox.folder import open_sandbox
from tests.support.programs import Finished
from tests.support.runs.running import BY_USER, environment, exeat, folder_of, python

pytestmark = pytest.mark.threat("T-M2")


class Person:
    def __init__(self, home: Path, uid: int | None) -> None:
        self.home, self.uid = home, uid
        for name, text in ((".aws/credentials", "KEY"), (".ssh/id_rsa", "RSA"), (".ssh/known_hosts", "KNOWN")):
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text(text)
        for name in ("work", "notes"):
            (home / name).mkdir()
        (home / "notes/n").write_text("NOTE")
        for each in (home, *home.rglob("*")):
            os.chown(each, *(os.geteuid(), os.getegid()) if uid is None else (uid, uid))

    def run(self, *options: str, script: str) -> Finished:
        env = environment(EXEAT_HOME=str(self.home / "state"), HOME=str(self.home))
        options = ("--name", "box", "--new", *options)
        return exeat(*options, command=["sh", "-c", f"cd; {script}"], uid=self.uid, env=env, cwd=self.home / "work")


@pytest.fixture
def person(uid: int | None) -> Iterator[Person]:
    with folder_of(uid) as home:
        yield Person(home, uid)


LOOK = "cat .aws/credentials .ssh/id_rsa notes/n; cat .ssh/known_hosts; true"


@BY_USER
def test_what_a_run_was_shown_is_hidden_from_the_next_in_spite_of_the_copy_in_its_layer(person: Person) -> None:
    shown = [f"--show={person.home}/{name}" for name in (".aws", ".ssh")]
    touch = "touch .aws/credentials .ssh/id_rsa notes/n"
    assert person.run(*shown, script=f"{touch}; echo {{1..9}} >> .aws/credentials").status == 0
    again = person.run(f"--hide={person.home}/notes", script=LOOK)
    assert (again.status, again.stdout) == (0, "KNOWN"), again
    assert f"{person.home}/.aws" in again.stderr  # and it says why
    assert "KEY" in person.run(*shown, script=LOOK).stdout, "who is shown it finds the copy again"
    # Its own, which it makes where it finds nothing, stays hidden with the rest. So does all of it, as one layer.
    assert person.run(f"--hide={person.home}/notes", script="mkdir .aws && echo OWN > .aws/credentials").status == 0
    assert "KEY" not in person.run(script=LOOK).stdout


@BY_USER
def test_what_a_command_made_where_it_found_nothing_is_there_the_next_time(person: Person) -> None:
    assert person.run(script="mkdir .aws && echo OWN > .aws/credentials").status == 0
    again = person.run(script="cat .aws/credentials")
    assert again.stdout == "OWN\n", again


def test_one_layer_made_of_many_hides_what_one_of_them_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder_of(None) as home:
        person = Person(home, None)
        monkeypatch.setenv("EXEAT_HOME", str(home / "state"))
        assert person.run(f"--show={home}/.aws", script="touch .aws/credentials").status == 0
        for number in range(8):
            assert person.run(script=f"touch made{number}").status == 0
        with open_sandbox("box") as box:
            assert len(layer_numbers(box)) == 9
            fold_layers(box)
            assert len(layer_numbers(box)) == 1
        again = person.run(script=LOOK)
        assert ("KEY" in again.stdout, "NOTE" in again.stdout) == (False, True), again


FORGE = """
import os
os.chdir(os.path.expanduser("~/notes"))
open("own", "w").close()
try:
    os.setxattr(".", "user.overlay.opaque", b"y")
except OSError as error:
    print(error)
"""


@BY_USER
def test_a_mark_that_the_command_sets_itself_removes_nothing(person: Person) -> None:
    """Only the kernel says that a folder was removed and made again. Else a list of changes would say it, and apply."""
    program = shlex.join(python(FORGE))
    done = person.run(script=f"{program}; ls notes")
    assert (done.status, done.stdout.split()[-2:]) == (0, ["n", "own"]), done
    assert person.run(script="ls notes").stdout.split() == ["n", "own"]
    assert person.run(script=f"rm -r notes; mkdir notes; touch notes/new; {program}").status == 0
    assert person.run(script="ls notes").stdout.split() == ["new", "own"]
