"""Keys by ways that need a machine of a certain kind, and by what a command leaves for the next one."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from exeat.files.layers.folding import fold_layers
from exeat.files.layers.kept import layer_numbers
from exeat.sandbox.folder import open_sandbox
from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished, need
from tests.support.runs.owned import KEY, START, Owned, owned
from tests.support.runs.running import AS_ROOT, BY_USER, environment, exeat, folder_of, python

pytestmark = pytest.mark.threat("T-M2")


def _read(there: Owned, path: object) -> tuple[bool, bool]:
    """Outside and inside."""
    control, jailed = there.outside("cat", str(path)), there.inside("cat", str(path))
    assert jailed.status == 1, jailed
    return KEY in control.stdout, KEY in jailed.stdout


@AS_ROOT
@BY_USER
@pytest.mark.parametrize("part", ["", ".ssh", ".ssh/id_ed25519"])
def test_a_second_mount(uid: int | None, part: str) -> None:
    """Of the home, of the folder, of the file: in another place of the machine, or in the project."""
    need("unshare")
    with owned(uid) as plain:
        for second in (plain.home.parent / "second", plain.project / "second"):
            (second.touch if part.endswith("19") else second.mkdir)()
            there = replace(plain, mounts=f"mount --bind {plain.home}/{part} {second}")
            path = second / plain.key.relative_to(plain.home / part) if not part.endswith("19") else second
            assert _read(there, path) == (True, False)
            assert _read(there, there.key) == (True, False)


@AS_ROOT
@BY_USER
def test_something_mounted_in_the_home(uid: int | None) -> None:
    """Then the home cannot be one layer."""
    need("unshare")
    with owned(uid) as plain:
        (plain.home / "disk").mkdir()
        there = replace(plain, mounts=f"mount -t tmpfs other {plain.home}/disk")
        assert _read(there, there.key) == (True, False)
        changed = there.inside("sh", "-c", "echo changed >> ~/.bashrc; cat ~/.bashrc")
        assert changed.stdout == f"{START}changed\n", changed
        assert there.start.read_text() == START


@BY_USER
@pytest.mark.parametrize(
    "words",
    [
        "mkdir -p ~/.ssh; rm -rf ~/.ssh; mkdir ~/.ssh; touch ~/.ssh/mine",
        "rm -rf ~/.ssh; ln -s ../home/.ssh ~/.ssh",
        "rm -rf ~/.ssh; mkdir ~/new; mv ~/new ~/.ssh",
        "cd ~ && for each in * .[a-z]*; do rm -rf $each; done; mkdir -p ~/.ssh",
        "rm -rf ~/.ssh; mkdir ~/.ssh; for name in opaque redirect origin metacopy whiteout impure; do"
        " for at in user.overlay user.overlay.overlay trusted.overlay; do"
        " {} $at.$name; done; done",
    ],
    ids=["made again", "a link", "renamed", "all removed", "marked"],
)
def test_what_a_run_left_in_a_sandbox_uncovers_nothing_in_the_next(uid: int | None, words: str) -> None:
    """What is kept lies above what hides."""
    mark = 'python3 -c \'import os, sys; os.setxattr(os.path.expanduser("~/.ssh"), sys.argv[1], b"n")\' 2>/dev/null'
    kept = ["--name", "kept"]
    with owned(uid) as there:
        first = there.inside("sh", "-c", words.replace("{}", mark) + "; true", options=["--new", *kept])
        assert first.status == 0, first
        for _ in range(2):
            after = there.inside("sh", "-c", "cat ~/.ssh/id_ed25519; ls -a ~/.ssh; true", options=kept)
            assert after.status == 0, after
            assert KEY not in after.stdout
            assert "id_ed25519" not in after.stdout.split()
        assert there.key.read_text() == f"{KEY}\n"
        assert there.start.read_text() == START


@BY_USER
def test_a_key_that_is_replaced_meanwhile_stays_hidden(uid: int | None) -> None:
    """As programs renew them: under another name first, which is in a hidden folder, and then renamed."""
    with owned(uid) as there:
        words = (
            f"touch ready; while ! test -e {there.project}/go; do sleep 0.02; done;"
            " cat ~/.ssh/id_ed25519 ~/.ssh/new; ls -a ~/.ssh"
        )
        with _renewing(there):
            done = there.inside("sh", "-c", f"{words}; true")
        assert done.status == 0, done
        assert "renewed" not in done.stdout
        assert there.key.read_text() == "renewed"


@contextmanager
def _renewing(there: Owned) -> Iterator[None]:
    """Someone outside renews the key when the command runs."""

    def renew() -> None:
        wait_until((there.project / "ready").exists, "the command to run")
        new = there.key.with_name("new")
        new.write_text("renewed")
        there.give(new)
        new.rename(there.key)
        (there.project / "go").touch()

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    yield
    thread.join()


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
