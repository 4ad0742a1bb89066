"""`exeat files diff`: what layers would change, against the machine as it is now."""

from __future__ import annotations

import json

import pytest

from tests.support.fixtures.layers import Machine

pytestmark = pytest.mark.thorough


def test_the_list_says_what_was_added_changed_and_removed(machine: Machine) -> None:
    machine.do("echo one > same; echo two > changed; echo three > gone; mkdir old; echo 4 > old/a; echo 5 > old/b")
    machine.run(
        "touch same; chmod 600 same; chmod 644 same; echo more >> changed; rm gone\n"
        "rm -r old; mkdir old; echo 6 > old/c\n"
        "mkdir -p new/deep; echo 12345 > new/deep/file; ln -s /etc/passwd new/link; ln -s nowhere dangling; mkdir empty"
    )
    done = machine.files("diff")
    real = str(machine.real)
    assert done.status == 0, done
    assert [line.split(maxsplit=1)[0] + line.rpartition(real)[2] for line in done.stdout.splitlines()[:-1]] == [
        "M/changed", "A/dangling  (link to nowhere)", "A/empty/  (0 files)", "D/gone", "A/new/  (2 files)", "D/old/a",
        "D/old/b", "A/old/c",
    ]  # fmt: skip
    assert "4 B -> 9 B" in done.stdout
    assert done.stdout.splitlines()[-1] == "4 added, 1 changed, 3 removed (17 B)"
    inside = machine.files("diff", "new")
    assert [line.rpartition(real)[2] for line in inside.stdout.splitlines()[:-1]] == [
        "/new/deep/file", "/new/link  (link to /etc/passwd)",
    ]  # fmt: skip
    listed = json.loads(machine.files("diff", "--json", "changed").stdout)
    assert listed["changes"][0] == {
        "kind": "changed", "path": f"{real}/changed", "size": 9, "size_before": 4, "files": None, "note": "",
    }  # fmt: skip


def test_text_is_shown_as_a_diff_and_nothing_in_it_reaches_the_terminal(machine: Machine) -> None:
    machine.do("printf 'one\\ntwo\\n' > text; printf '\\0' > binary")
    machine.run(r"printf 'one\n\033[2Jthree\n' > text; printf '\1\377' > binary; head -c 300000 /dev/zero > long")
    done = machine.files("diff", "--text")
    assert done.status == 0, done
    assert "\n-two\n+\\x1b[2Jthree\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert f"{machine.real}/binary: not shown: it is not text" in done.stdout
    assert f"{machine.real}/long: not shown: it is too long" in done.stdout
    assert "four" not in machine.files("diff", "--text", "text").stdout


def test_names_that_a_command_chose_do_nothing_to_the_terminal(machine: Machine) -> None:
    machine.run(r"""touch "$(printf 'a\nM  =etc=passwd\033[2J')" """)
    done = machine.files("diff")
    assert "a\\nM  =etc=passwd\\x1b[2J" in done.stdout
    assert len(done.stdout.splitlines()) == 2


def test_what_changed_outside_since_then_is_named(machine: Machine) -> None:
    machine.do("echo one > file; mkdir folder; echo in > folder/in")
    machine.run("echo two > file; rm -r folder; mkdir folder")
    assert "since then" not in machine.files("diff").stdout
    machine.do("echo three > file; echo new > folder/new")
    done = machine.files("diff")
    assert f"{machine.real}/file  (changed outside since then)" in done.stdout
    assert "folder/in" in done.stdout
    assert "folder/new" not in done.stdout  # no command removed that


def test_hidden_paths_are_neither_compared_nor_removed(machine: Machine) -> None:
    """M2: inside, nothing is at these paths. That must not read as if the command had removed them."""
    machine.do("mkdir -p keys/deep; echo secret > keys/deep/key; mkdir other; echo 1 > other/file")
    machine.run("rm -r keys other; mkdir keys; echo mine > keys/deep", hidden=f"{machine.real}/keys/deep")
    machine.run("rm keys/deep")
    done = machine.files("diff", "--text")
    assert "secret" not in done.stdout
    listing = machine.files("diff").stdout
    assert "keys" not in listing
    assert "other" in listing


def test_a_path_without_changes_is_an_error(machine: Machine) -> None:
    machine.run("echo one > file")
    done = machine.files("diff", "no-such")
    assert (done.status, "nothing has changed at" in done.stderr) == (2, True)
    assert machine.files("diff", "file").status == 0


def test_nothing_kept_is_said_in_a_sentence(machine: Machine) -> None:
    machine.run("true")
    done = machine.files("diff")
    assert (done.status, done.stdout) == (
        0, 'nothing outside the project has changed in the sandbox "box"\n',
    )  # fmt: skip
