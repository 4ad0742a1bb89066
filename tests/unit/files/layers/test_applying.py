"""`exeat files apply|discard`: a hostile command wrote what is applied, and the machine may change meanwhile."""

from __future__ import annotations

import stat

import pytest

from tests.support.fixtures.layers import Machine

pytestmark = [pytest.mark.thorough, pytest.mark.threat("T-M4")]


def test_chosen_paths_are_copied_and_nothing_else(machine: Machine) -> None:
    machine.do("echo old > changed; echo old > other; echo old > gone; echo old > stays")
    machine.run(
        "echo new > changed; echo new > other; rm gone stays\n"
        "mkdir -p -m 750 a/b; echo tool > a/b/tool; chmod 755 a/b/tool; echo no > a/not; ln -s tool a/b/link"
    )
    done = machine.files("apply", "--yes", "changed", "gone", "a/b")
    assert done.status == 0, done
    assert done.stdout.index("overwritten or removed:") < done.stdout.index(f"{machine.real}/changed")
    assert done.stdout.index(f"{machine.real}/gone") < done.stdout.index("added:")
    assert machine.do("cat changed other stays a/b/tool; readlink a/b/link; ls -A . a a/b") == (
        "new\nold\nold\ntool\ntool\n.:\na\nchanged\nother\nstays\n\na:\nb\n\na/b:\nlink\ntool\n"
    )
    assert stat.S_IMODE((machine.real / "a/b/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((machine.real / "a/b").stat().st_mode) == 0o750
    assert "tool" not in machine.files("diff", "--all").stdout  # the same on both sides now


def test_it_asks_and_does_nothing_without_a_yes(machine: Machine) -> None:
    machine.do("echo old > file")
    machine.run("echo new > file")
    done = machine.files("apply", "file")
    assert (done.status, "there is no terminal to ask at" in done.stderr) == (2, True)
    assert f"{machine.real}/file" in done.stdout
    assert machine.files("apply", "--yes").status == 2  # neither a path nor --all
    assert machine.do("cat file") == "old\n"


def test_no_file_becomes_set_user_id_and_no_link_is_followed(machine: Machine) -> None:
    """M4: the layer has a link and the machine has a folder on the way, and the other way round."""
    machine.do("mkdir target folder; echo safe > target/file; echo safe > folder/file; ln -s target way")
    machine.run(
        "cp /bin/true s; chmod 6777 s; ln -s target/file over\n"
        "rm way; mkdir way; echo bad > way/file; echo bad > way/new"
    )
    done = machine.files("apply", "--all", "--yes")
    assert done.status == 1
    assert f"skipped: {machine.real}/way: it is a file here and was replaced by a folder" in done.stderr
    assert f"skipped: {machine.real}/way/new: part of its path is a link or a file" in done.stderr
    assert machine.do("cat target/file; ls target; readlink way over") == "safe\nfile\ntarget\ntarget/file\n"
    assert stat.S_IMODE((machine.real / "s").stat().st_mode) == 0o777
    # Over a link outside, a file takes the place of the link, and what it leads to stays.
    machine.run("rm -rf over; echo mine > over")
    assert machine.files("apply", "over", "--yes").status == 0
    assert machine.do("cat over target/file") == "mine\nsafe\n"


@pytest.mark.parametrize("turn", ["mv way moved; ln -s elsewhere way", "mv way moved; mkdir way; echo 3 > way/file"])
def test_what_changes_between_showing_and_doing_is_left_alone(machine: Machine, turn: str) -> None:
    """M4: a command that still runs turns the folder into a link, or puts another file there."""
    machine.do("mkdir way elsewhere; echo 1 > way/file; echo 1 > elsewhere/file")
    machine.run("echo 2 > way/file")
    program = (
        "from exeat.files.layers.applying import apply, plan\nfrom exeat.files.layers.comparing import Comparison\n"
        "from exeat.sandbox.folder import open_sandbox\n"
        "with open_sandbox('box') as box, Comparison(box) as comparison:\n"
        f"    wanted = plan(comparison, [])\n    os.system({turn!r})\n"
        "    print(len(wanted), [left.why for left in apply(comparison, wanted)])"
    )
    assert machine.python(program).startswith("1 ['")
    assert machine.do("cat elsewhere/file moved/file") == "1\n1\n"
    assert machine.do("cat way/file") != "2\n"
    assert machine.do("find . -name '.exeat-*'") == ""


def test_what_was_hidden_is_never_overwritten_or_removed(machine: Machine) -> None:
    """M2: the command may make a file where it saw none, or remove the folder around it."""
    machine.do("mkdir -p config/cloud; echo key > config/cloud/key; echo key > netrc; echo 1 > config/other")
    hidden = f"{machine.real}/netrc"
    machine.run("echo mine > netrc", hidden=hidden)
    machine.run("rm -r config", hidden=f"{machine.real}/config/cloud")
    done = machine.files("apply", "--all", "--yes")
    assert done.status == 1
    assert f"skipped: {machine.real}/netrc: the command could not see what you have there" in done.stderr
    assert f"skipped: {machine.real}/config: holds what was hidden" in done.stderr
    assert machine.do("cat netrc config/cloud/key config/other") == "key\nkey\n1\n"


def test_a_folder_in_the_place_of_a_file_and_the_other_way_round_are_left(machine: Machine) -> None:
    machine.do("echo file > file; mkdir folder; echo in > folder/in")
    machine.run("rm -r file folder; mkdir file; echo x > file/x; echo y > folder")
    done = machine.files("apply", "--all", "--yes")
    assert (done.status, done.stderr.count("skipped: ")) == (1, 3)
    assert machine.do("cat file folder/in") == "file\nin\n"


def test_a_folder_that_was_removed_goes_with_all_in_it(machine: Machine) -> None:
    machine.do("mkdir -p gone/deep outside; echo 1 > gone/deep/1; echo 2 > outside/2; ln -s ../outside gone/link")
    machine.run("rm -r gone")
    assert "gone/  (2 files)" in machine.files("diff").stdout
    assert machine.files("apply", "gone", "--yes").status == 0
    assert machine.do("ls; cat outside/2") == "outside\n2\n"


def test_discard_forgets_paths_or_everything_and_leaves_the_machine_alone(machine: Machine) -> None:
    machine.do("echo real > file; echo real > gone")
    machine.run("echo 1 > file; mkdir new; echo 1 > new/a; echo 1 > new/b")
    machine.run("rm gone; echo 2 > new/b")
    assert machine.files("discard", "--yes", "new/a", "file").status == 0
    assert [line.rpartition("/")[2] for line in machine.files("diff", "--all").stdout.splitlines()[:-1]] == [
        "gone",
        "b",
    ]
    assert machine.run("grep real file && test ! -e new/a && grep 2 new/b && test ! -e gone")["status"] == 0
    assert machine.files("discard", "--yes").status == 0
    assert machine.run("grep real file gone && test ! -e new")["layers"] == 0
    assert machine.do("cat file gone; ls") == "real\nreal\nfile\ngone\n"
    assert machine.files("discard", "--yes").status == 1  # nothing is left


def test_layers_in_use_are_not_forgotten(machine: Machine) -> None:
    machine.run("echo 1 > file")
    program = (
        "from exeat.files.layers.kept import kept_layers\nfrom exeat.sandbox.folder import open_sandbox\n"
        "from exeat.cli.main import main\nheld = kept_layers(open_sandbox('box'))\nsys.stderr = sys.stdout\n"
        "main(['files', 'discard', '--yes', '--name', 'box'])"
    )
    assert 'a command runs in the sandbox "box"' in machine.python(program)
    assert machine.run("cat file")["layers"] == 1
    assert machine.files("discard", "--yes").status == 0


def test_what_was_removed_with_its_folder_is_there_again_once_that_is_forgotten(machine: Machine) -> None:
    """The folder was removed and made again, so it hides all that the machine has in it. Some of that comes back."""
    machine.do("mkdir -p f/sub/deep; for i in a b c sub/d sub/e sub/deep/g; do echo real > f/$i; done")
    machine.run("rm -r f; mkdir -p f/sub; echo mine > f/new; echo mine > f/sub/d")
    assert machine.files("discard", "--yes", "f/a", "f/sub/e").status == 0
    listed = machine.files("diff", "--all").stdout.splitlines()[:-1]
    paths = [line.rpartition("/f/")[2].partition("  ")[0] for line in listed]
    assert paths == ["b", "c", "new", "sub/d", "sub/deep/"]
    seen = [line.split()[0] for line in machine.seen().splitlines()]
    assert seen == ["f", "f/a", "f/new", "f/sub", "f/sub/d", "f/sub/e"]
    assert machine.run("grep real f/a f/sub/e && grep mine f/sub/d")["status"] == 0


def test_a_broken_layer_is_named_and_can_be_forgotten(machine: Machine) -> None:
    machine.run("echo 1 > file")
    machine.do(f"rm {machine.layers}/000001/facts")
    done = machine.files("diff")
    assert (done.status, "exeat files discard --name box" in done.stderr) == (1, True)
    assert machine.files("discard", "--yes", "file").status == 1
    assert machine.files("discard", "--yes").status == 0
    assert machine.run("test ! -e file")["layers"] == 0
