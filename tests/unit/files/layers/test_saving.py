"""What a run wrote is counted and kept as a layer, whatever it wrote, and the next run sees it."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.fixtures.layers import Machine
from tests.support.runs.running import AS_ROOT

pytestmark = pytest.mark.thorough


def test_the_next_run_sees_what_the_last_one_wrote_and_removed(machine: Machine) -> None:
    machine.do("echo one > kept; echo two > changed; echo three > gone; mkdir old; echo four > old/in")
    before = machine.seen()
    done = machine.run(
        "echo 2 > changed; rm gone; echo new > added; ln -s /etc/passwd link; rm -r old; mkdir old; echo 5 > old/other"
    )
    assert (done["status"], done["counted"]["files"], done["counted"]["removed"]) == (0, 4, 1)
    assert sorted(done["counted"]["paths"])[:2] == [f"{machine.real}/added", f"{machine.real}/changed"]
    assert done["saved"]["number"] == 1
    again = machine.run("cat kept changed added old/other; test ! -e gone; test ! -e old/in; readlink link")
    assert (again["status"], again["layers"]) == (0, 1)
    assert machine.seen() != before
    assert machine.do("cat kept changed gone old/in; ls") == "one\ntwo\nthree\nfour\nchanged\ngone\nkept\nold\n"


def test_a_run_that_writes_nothing_leaves_no_layer(machine: Machine) -> None:
    machine.do("echo one > kept")
    done = machine.run("cat kept")
    assert (done["counted"]["files"], done["saved"]["number"]) == (0, 0)
    assert not machine.layers.exists()


def test_files_that_came_and_went_leave_no_layer(machine: Machine) -> None:
    """A lock in a folder, as most programs make one: the folder is in the upper then, and nothing in it."""
    machine.do("mkdir -p cache/deep")
    assert machine.run("touch cache/deep/lock && rm cache/deep/lock")["saved"]["number"] == 0
    assert machine.kept() == [".lock"]
    assert machine.run("mkdir cache/new")["saved"]["number"] == 1  # a new folder is something


@AS_ROOT
def test_where_removals_cannot_be_recorded_nothing_is_kept_and_it_says_why(machine: Machine) -> None:
    """exeat's own folder on an overlay, as in a container."""
    if machine.uid is not None:
        pytest.skip("mounting it takes root")
    machine.do(f"echo one > gone; mkdir -p {machine.base}/lower {machine.base}/mem {machine.state}")
    mounts = (
        'mount -t tmpfs t "$1/mem" && mkdir "$1/mem/u" "$1/mem/w" && '
        'mount -t overlay o -o "lowerdir=$1/lower,upperdir=$1/mem/u,workdir=$1/mem/w" "$1/state" && shift && exec "$@"'
    )
    before = ["unshare", "-m", "sh", "-c", mounts, "sh", str(machine.base)]
    assert "cannot record that a file was removed" in machine.run("rm gone", before=before)["error"]
    assert machine.run("echo two > new", before=before)["saved"]["number"] == 1


@pytest.mark.threat("T-M3")
def test_what_only_a_hostile_command_writes_is_kept_without_harm(machine: Machine) -> None:
    """Modes that lock us out, set-user-ID bits, pipes, sockets, links out, strange names, holes, attributes."""
    machine.do("mkdir locked; echo in > locked/in; chmod 700 locked")
    script = r"""
        echo x > locked/more; chmod 000 locked/more locked; mkdir shut; echo y > shut/y; chmod 000 shut
        cp /bin/true setuid; chmod 6755 setuid; mkdir sticky; chmod 1777 sticky
        mkfifo pipe; ln -s ../../../../../../etc/shadow out; ln -s "$FOLDER" loop
        touch "$(printf 'new\nline \033[2J')" "$(printf 'not-utf8-\377')" -- -rf
        truncate -s 1T holes; printf end >> holes
        echo linked > first; ln first second
        setfattr -n user.overlay.redirect -v /etc first 2>/dev/null; setfattr -n user.mine -v 1 second 2>/dev/null
        true
    """
    done = machine.run(script)
    assert done["status"] == 0
    assert done["saved"]["left_out"] == [f"{machine.real}/pipe"]
    tree = machine.tree(1)
    found = {each.name: each.lstat() for each in tree.iterdir()}
    assert stat.S_IMODE(found["setuid"].st_mode) == 0o755
    assert stat.S_IMODE(found["sticky"].st_mode) == 0o1777
    assert stat.S_IMODE(found["shut"].st_mode) == 0o700
    assert (tree / "shut/y").read_text() == "y\n"
    assert (tree / "locked/more").read_text() == "x\n"
    assert found["holes"].st_size == (1 << 40) + 3
    assert found["holes"].st_blocks < 1000
    assert stat.S_ISLNK(found["out"].st_mode)
    assert found["first"].st_ino == found["second"].st_ino
    assert os.listxattr(tree / "second") == []
    assert {"new\nline \x1b[2J", "-rf"} <= set(found)
    assert "not-utf8-\udcff" in found
    assert machine.run("test -x setuid && test ! -u setuid && test ! -e pipe && grep -q linked second")["status"] == 0


def test_what_is_too_deep_is_left_out_and_the_rest_is_kept(machine: Machine) -> None:
    """2,000 folders in each other, and names of 255 letters in each other: neither stops a run or a removal."""
    deep = "import os\nfor _ in range(2000): os.mkdir('d'); os.chdir('d')\nopen('x', 'w').close()"
    long = "import os\nfor _ in range(30): os.mkdir('n' * 255); os.chdir('n' * 255)\nopen('x', 'w').close()"
    done = machine.run(f'python3 -I -c "{deep}" && python3 -I -c "{long}" && echo fine > fine')
    assert (done["status"], done["saved"]["left_out_count"]) == (0, 2)
    assert machine.run("cat fine")["status"] == 0
    again = machine.run("true")
    assert again["layers"] == 1


def test_a_file_too_large_for_the_disk_does_not_keep_the_others_from_being_kept(machine: Machine) -> None:
    """In memory a file may be of any size, as long as there is nothing in it."""
    done = machine.run("truncate -s 1000T huge && echo one > file")
    assert (done["status"], done["saved"]["left_out"]) == (0, [f"{machine.real}/huge"])
    assert machine.run("grep -q one file && test ! -e huge")["status"] == 0


def test_more_names_than_a_disk_lets_a_file_have(machine: Machine) -> None:
    """In memory there is no end to them. Where one more cannot be had, the file is copied: when saved, when folded."""
    program = (
        "import errno\nfrom exeat.files.layers.saving import save_layer\nfrom exeat.files.layers import folding\n"
        "from exeat.files.layers.kept import kept_layers\nfrom exeat.sandbox.folder import open_sandbox\n"
        "def refuse(*names, **more): raise OSError(errno.EMLINK, 'Too many links')\n"
        "os.mkdir('upper'); open('upper/one', 'w').write('content'); os.link('upper/one', 'upper/two')\n"
        "os.link = refuse; folding.MAX_LAYERS = 1; box = open_sandbox('box', create=True)\n"
        "for _ in range(2): save_layer(box, [('/part', os.open('upper', 0))], 1 << 30)\n"
        "folding.fold_layers(box); tree, = kept_layers(box)\n"
        "print([open(os.open(f'part/{name}', 0, dir_fd=tree)).read() for name in ('one', 'two')])"
    )
    assert machine.python(program) == "['content', 'content']\n"


def test_a_layer_that_is_too_large_is_not_kept_and_says_so(machine: Machine) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x > big"
    assert machine.run(script, limit=400_000)["saved"]["number"] == 1
    assert "larger than" in machine.run(script, limit=400_000)["error"]  # with the first one, that is
    assert machine.kept() == [".lock", "000001"]
    small = "for i in $(seq 200); do echo > $i; done"  # a block each
    assert "larger than" in machine.run(small, limit=500_000)["error"]


def test_an_interrupted_save_leaves_nothing_that_counts(machine: Machine) -> None:
    """What a dead run has left is removed at the next start; a layer it never is."""
    machine.run("echo 1 > one")
    machine.do(f"cp -r {machine.layers}/000001 {machine.layers}/.new-7; rm {machine.layers}/.new-7/facts")
    done = machine.run("cat one")
    assert (done["status"], done["layers"]) == (0, 1)
    assert machine.kept() == [".lock", "000001"]


def test_many_layers_become_one_with_the_same_content(machine: Machine) -> None:
    machine.do("for i in 1 2 3; do mkdir d$i; echo real > d$i/real; echo real > f$i; done")
    scripts = [
        "rm f1; echo 1 > d1/new", "rm -r d2; echo file > d2", "rm d2; mkdir d2; echo again > d2/again",
        "echo f1 > f1; chmod 600 f1", "rm d1/new", "mkdir e; echo e > e/e; ln -s e e-link", "rm -r e; rm e-link",
        "rm -r d3", "mkdir d3; echo d3 > d3/d3", "echo last > last",
    ]  # fmt: skip
    for script in scripts[:-1]:
        machine.run(script)
        assert len(machine.do(f"ls {machine.layers}").split()) <= 10
    before = machine.seen()  # nine layers: made one, then looked at
    assert machine.do(f"ls {machine.layers}").split() == ["000010"]
    assert [line.split()[0] for line in before.splitlines()] == [
        "d1",
        "d1/real",
        "d2",
        "d2/again",
        "d3",
        "d3/d3",
        "f1",
        "f2",
        "f3",
    ]
    assert machine.run(scripts[-1])["layers"] == 1
    assert machine.seen().replace("last f 644 5\n", "") == before


def test_layers_in_use_are_not_made_one(machine: Machine) -> None:
    """While one run looks through them, the next one leaves them as they are."""
    program = (
        "from exeat.files.layers.kept import kept_layers\nfrom exeat.files.layers.folding import fold_layers\n"
        "from exeat.files.layers.saving import save_layer\nfrom exeat.sandbox.folder import open_sandbox\n"
        "os.mkdir('upper'); box = open_sandbox('box', create=True)\n"
        "for number in range(9):\n"
        "    open('upper/file', 'w').write(str(number))\n"
        "    save_layer(box, [(f'/part{number}', os.open('upper', 0))], 1 << 30)\n"
        "held = kept_layers(box); fold_layers(box); print(len(held), len(kept_layers(box)))"
    )
    assert machine.python(program) == "9 9\n"
    assert machine.run("true")["layers"] == 1  # the one that held them is gone
    (tree,) = machine.layers.glob("*/tree")
    assert [(tree / f"part{number}/file").read_text() for number in range(9)] == [*"012345678"]


@pytest.mark.threat("T-M3")
def test_a_link_on_the_way_to_another_part_is_never_gone_through(machine: Machine) -> None:
    """The upper of a folder has a link where the way to a second overlaid folder goes."""
    program = (
        "from exeat.errors import ExeatError\nfrom exeat.files.layers.saving import save_layer\n"
        "from exeat.sandbox.folder import open_sandbox\n"
        "os.makedirs('outer'); os.makedirs('inner'); os.symlink(os.path.abspath('escaped'), 'outer/way')\n"
        "open('inner/file', 'w').close(); os.makedirs('escaped/to')\n"
        "parts = [('/a', os.open('outer', 0)), ('/a/way/to', os.open('inner', 0))]\n"
        "try: save_layer(open_sandbox('box', create=True), parts, 1 << 30)\n"
        "except ExeatError as error: print(error.public)"
    )
    assert "replaced" in machine.python(program)
    assert machine.kept() == [".lock"]
    assert list((machine.real / "escaped").rglob("*")) == [machine.real / "escaped/to"]


def test_a_sandbox_is_removed_with_its_layers(machine: Machine) -> None:
    machine.run("mkdir -p a/b; echo x > a/b/c; ln -s / root; rm -rf a/b; chmod 000 a")
    program = (
        "from exeat.sandbox.folder import remove_sandbox, list_sandboxes\n"
        "remove_sandbox('box'); print(list_sandboxes())"
    )
    assert machine.python(program) == "[]\n"
    assert not machine.layers.parent.exists()
