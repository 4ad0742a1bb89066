"""`exeat run` on machines whose files are mounted in strange ways: it works, or says what is missing; never wider."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateways.redirected import require
from tests.support.jails.machines import AUTOFS, FUSE, GO_IN, IN_OVERLAY, NO_OVERLAY, TWICE, USER, Machine, machine_of
from tests.support.programs import Finished, need
from tests.support.runs.running import AS_ROOT

pytestmark = AS_ROOT
_QUICKLY = "from exeat.jail.files import mounttable\nmounttable._PATIENCE_MS = 300\n"
_LOOK = "ls -A ~/.ssh; cat ~/file; echo inside > ~/file && cat ~/file; echo made > made"


@pytest.fixture(params=(0, USER), ids=("root", "user"))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    require()
    with machine_of(request.param) as made:
        yield made


@pytest.fixture
def users() -> Iterator[Machine]:
    require()
    with machine_of(USER) as made:
        yield made


def assert_usual(machine: Machine, done: Finished) -> None:
    """Keys are hidden, the home is a copy, the project is real."""
    assert done.stdout.split() == ["known_hosts", "outside", "inside"], done
    assert (machine.home / "file").read_text() == "outside\n"
    assert (machine.project / "made").exists()


def test_an_ordinary_machine(machine: Machine) -> None:
    assert_usual(machine, machine.run(_LOOK))


def test_something_is_mounted_in_the_home_directory(machine: Machine) -> None:
    """As root the kernel leaves it out of a layer. For a user the folder is made by hand: keys are hidden there too."""
    mounts = 'mount -t tmpfs -o mode=777 t "$MACHINE_HOME/point"; echo m > "$MACHINE_HOME/point/mounted"'
    done = machine.run(f"{_LOOK}; cat ~/point/mounted >&2; echo new > ~/point/new && ls ~/point >&2", mounts=mounts)
    assert_usual(machine, done)
    assert done.stderr.split()[:3] == ["m", "mounted", "new"]


def test_large_files_beside_a_mount(users: Machine) -> None:
    """They are not copied: they can be read, and not be changed. A hidden one is not there."""
    for name in ("large", "secret"):
        (users.home / name).write_bytes(bytes(1_100_000))
    users.give(users.home)
    script = "wc -c < ~/large; ls ~/secret; echo x >> ~/large; rm ~/large; ls ~/large"
    mounts = 'mount -t tmpfs t "$MACHINE_HOME/point"'
    done = users.run(script, "--hide", str(users.home / "secret"), mounts=mounts)
    assert done.stdout.split() == ["1100000", f"{users.home}/large"], done
    assert "secret': No such file" in done.stderr
    assert "Read-only file system" in done.stderr


def test_the_home_directory_is_mounted_at_a_second_place(machine: Machine) -> None:
    second = machine.give_folder("second")
    done = machine.run(f"{_LOOK}; ls -A {second}/.ssh >&2", mounts=f'mount --bind "$MACHINE_HOME" {second}')
    assert_usual(machine, done)
    assert done.stderr.split()[:1] == ["known_hosts"]
    assert "id_rsa" not in done.stderr


def test_a_part_of_the_home_directory_is_mounted_at_a_second_place(machine: Machine) -> None:
    """The whole way is another one: of .ssh itself, too."""
    second = machine.give_folder("second")
    done = machine.run(f"{_LOOK}; ls -A {second} >&2", mounts=f'mount --bind "$MACHINE_HOME/.ssh" {second}')
    assert_usual(machine, done)
    assert "id_rsa" not in done.stderr


@pytest.mark.parametrize("mode", [0o700, 0o710, 0o711])
def test_mounts_in_folders_that_are_closed_to_the_user(users: Machine, mode: int) -> None:
    """/var/lib/docker, or a /home that no one may list. What is known to be there is there, if it could be reached."""
    closed = users.folder / "closed"
    (closed / "point").mkdir(parents=True)
    os.chown(closed, 0, 0)
    closed.chmod(mode)
    mounts = f"mount -t tmpfs -o mode=755 t {closed}/point; echo m > {closed}/point/file"
    done = users.run(f"{_LOOK}; cat {closed}/point/file >&2; ls {closed} >&2", mounts=mounts)
    assert_usual(users, done)
    assert ("m\n" in done.stderr) == (mode == 0o711)


def test_the_root_is_an_overlay(machine: Machine) -> None:
    """As in a container. Nothing is mounted but /proc, /sys and /dev."""
    done = machine.run(_LOOK, mounts=f"{IN_OVERLAY}\nROOT=/mnt/r\n{GO_IN}")
    assert done.stdout.split() == ["known_hosts", "outside", "inside"], done


def test_files_are_mounted_on_files(machine: Machine) -> None:
    """As Docker does for /etc/hosts. They can be read; hidden ones are hidden."""
    mounts = (
        f"{IN_OVERLAY}\nROOT=/mnt/r\n{GO_IN}\nmount -t tmpfs t /srv; echo name > /srv/a; echo key > /srv/b\n"
        'mount --bind /srv/a /etc/hostname; mount --bind /srv/b "$MACHINE_HOME/.ssh/id_rsa"; umount -l /srv'
    )
    done = machine.run(f"{_LOOK}; cat /etc/hostname >&2; grep -c localhost /etc/hosts >&2", mounts=mounts)
    assert done.stdout.split() == ["known_hosts", "outside", "inside"], done
    assert done.stderr.startswith("name\n")


def test_the_root_is_an_overlay_over_an_overlay(machine: Machine) -> None:
    """Linux allows no third one, and there is no other view: it stops, with what helps."""
    mounts = f"{IN_OVERLAY}\nOVER=/mnt/r2\n{TWICE}\nROOT=/mnt/r2\n{GO_IN}"
    done = machine.run("echo started", mounts=mounts)
    assert done.status != 0
    assert done.stdout == ""
    assert "no more than two on each other" in done.stderr
    assert "--files host" in done.stderr


def test_the_home_directory_cannot_be_layered(machine: Machine) -> None:
    """It is empty then, but for the project, which is real; what is written there is thrown away."""
    mounts = f'{IN_OVERLAY}\nLOWER="$MACHINE_HOME" OVER="$MACHINE_HOME"\n{TWICE}'
    done = machine.run("ls ~; touch ~/new && ls ~; pwd", mounts=mounts)
    assert done.stdout.split() == ["project", "new", "project", str(machine.project)], done
    assert f"{machine.home} (overlay) is empty inside: Linux cannot layer this file system" in done.stderr


def test_a_file_system_without_sockets_that_cannot_be_layered_can_be_read(machine: Machine) -> None:
    """As vfat, which this kernel may not have. What is mounted in it is not shown for real, nor is what is hidden."""
    patches = "from exeat.jail.files import layering\nlayering._WITHOUT_SOCKETS = frozenset(['overlay'])\n"
    point = machine.home / "point"
    (point / "file").write_text("to be read")
    mounts = f'{IN_OVERLAY}\nLOWER="$MACHINE_HOME/point" OVER="$MACHINE_HOME/point"\n{TWICE}'
    script = "cat ~/point/file; touch ~/point/file 2> /dev/null || echo refused"
    done = machine.run(script, mounts=mounts, patches=patches)
    assert done.stdout == "to be readrefused\n", done
    assert "can only be read inside" in done.stderr
    hiding = machine.run("ls -A ~/point", "--hide", str(point / "file"), mounts=mounts, patches=patches)
    assert hiding.stdout == "", hiding
    assert "is empty inside" in hiding.stderr
    (point / "in it").mkdir()
    mounts += f'\nmount -t tmpfs t "{point}/in it"; echo real > "{point}/in it/file"'
    nested = machine.run('echo changed > ~/point/"in it"/file; findmnt -rno FSTYPE ~/point/"in it"', mounts=mounts)
    assert "tmpfs" not in nested.stdout, nested


def test_the_root_is_read_only(machine: Machine) -> None:
    mounts = f"mount --bind / /mnt; mount -o remount,bind,ro /mnt; ROOT=/mnt\n{GO_IN}"
    done = machine.run("ls -A ~/.ssh; echo inside > ~/file && cat ~/file; touch made", mounts=mounts)
    assert done.stdout.split() == ["known_hosts", "inside"], done
    assert "Read-only file system" in done.stderr


@pytest.mark.parametrize("how", ["hangs", "dead"])
def test_mounts_that_do_not_answer(machine: Machine, how: str) -> None:
    """A server that is gone, or a program that is: named, and empty; nothing waits for it."""
    point = machine.home / "point"
    fuse = [sys.executable, "-c", FUSE, how, str(machine.uid), str(point)]
    done = machine.run(f"{_LOOK}; ls -A ~/point", before=fuse, patches=_QUICKLY)
    assert_usual(machine, done)
    why = "it does not answer" if how == "hangs" else "Transport endpoint is not connected"
    assert f"{point} (fuse) is empty inside: {why}" in done.stderr


def test_a_mount_in_the_project_does_not_answer(machine: Machine) -> None:
    """It would be shared with the command: it stops, and says which one it is."""
    point = machine.project / "point"
    point.mkdir()
    fuse = [sys.executable, "-c", FUSE, "hangs", str(machine.uid), str(point)]
    done = machine.run("echo started", before=fuse, patches=_QUICKLY)
    assert done.stdout == ""
    assert f"the file system at '{point}' does not answer" in done.stderr


def test_a_fuse_mount_that_its_owner_does_not_share(machine: Machine) -> None:
    """It is closed outside as well: nothing to say."""
    fuse = [sys.executable, "-c", FUSE, "dead", str(machine.uid + 1), str(machine.home / "point")]
    done = machine.run(f"{_LOOK}; ls -A ~/point", before=fuse)
    assert_usual(machine, done)
    assert "empty inside" not in done.stderr


def test_the_home_directory_is_a_fuse_mount_of_its_owner(users: Machine) -> None:
    """As with sshfs or gocryptfs, without `allow_other`."""
    need("bindfs", "fusermount3")
    pid = users.folder / "pid"
    mounts = f"""
mount -t tmpfs -o dev,mode=755 t /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse
cp /etc/passwd /mnt/passwd; echo me:x:{USER}:{USER}::/:/bin/sh >> /mnt/passwd; mount --bind /mnt/passwd /etc/passwd
umount -l /mnt
setpriv --reuid {USER} --regid {USER} --clear-groups \\
    bindfs -f --no-allow-other -o nonempty "$MACHINE_HOME" "$MACHINE_HOME" > /dev/null 2>&1 &
echo $! > {pid}
while ! grep -q " $MACHINE_HOME fuse" /proc/self/mounts && kill -0 $!; do sleep 0.05; done
"""
    try:
        # Root cannot go there.
        go_there = f"import os\nos.chdir({str(users.project)!r})\n"
        done = users.run(_LOOK, mounts=mounts, cwd="/", patches=go_there)
    finally:
        os.kill(int(pid.read_text()), signal.SIGTERM)
    assert_usual(users, done)


def test_folders_that_are_mounted_when_they_are_needed(machine: Machine) -> None:
    """autofs: what is mounted by now is shown; nothing is mounted for our sake, which could take for ever."""
    point = machine.home / "point"
    done = machine.run(
        f"{_LOOK}; cat ~/point/there/file >&2; ls -A ~/point >&2",
        before=[sys.executable, "-c", AUTOFS, str(point)],
    )
    if "no autofs here" in done.stderr:
        pytest.skip("no autofs here")
    assert_usual(machine, done)
    assert done.stderr.startswith("mountedthere\n")


def test_a_home_directory_of_many_files_is_not_listed(users: Machine) -> None:
    """More than are ever copied. With a mount in it they would have to be: it says so."""
    mounts = """
mount -t tmpfs t /mnt; cp -a "$MACHINE_HOME" /mnt/home; (cd /mnt/home; seq 10001 | xargs touch)
mount --bind /mnt/home "$MACHINE_HOME"
"""
    done = users.run(_LOOK, mounts=mounts)
    assert done.stdout.split() == ["known_hosts", "outside", "inside"], done
    done = users.run("echo started", mounts=f'{mounts}\nmount -t tmpfs t "$MACHINE_HOME/point"')
    assert done.stdout == ""
    assert f"in a folder of more than 10,000 entries; it cannot be copied: {users.home}" in done.stderr


@pytest.mark.parametrize("name", ["a,b:c d", 'q"\\e', "line\nbreak", os.fsdecode(b"not\xffutf-8"), "ümläut"])
def test_any_name_will_do(machine: Machine, name: str) -> None:
    """In paths of the home directory, of mounts in it and of the project."""
    strange = machine.home / name
    (strange / "point").mkdir(parents=True)
    (strange / "project").mkdir()
    machine.give(machine.home)
    mounts = 'mount -t tmpfs -o mode=777 t "$MACHINE_STRANGE/point"; echo m > "$MACHINE_STRANGE/point/file"'
    script = "cat ../point/file && touch made ../point/new ../new && ls -A .. ../point"
    done = machine.run(script, mounts=mounts, cwd=strange / "project", MACHINE_STRANGE=str(strange))
    assert done.stdout.split()[1:] == ["..:", "new", "point", "project", "../point:", "file", "new"], done
    assert (strange / "project" / "made").exists()
    assert not (strange / "new").exists()


@pytest.mark.parametrize("folder", ["/run", "/dev/shm"])
def test_the_working_directory_is_in_a_private_folder(machine: Machine, folder: str) -> None:
    mounts = f"mount -t tmpfs -o mode=777 t {folder}; mkdir -m 777 {folder}/here"
    done = machine.run("echo started", mounts=mounts, cwd=f"{folder}/here")
    assert done.stdout == ""
    assert "start from another folder: /run and /dev/shm are private" in done.stderr


def test_hidden_files_in_a_private_folder(machine: Machine) -> None:
    mounts = "mount -t tmpfs -o mode=777 t /run; echo key > /run/key; chmod 666 /run/key"
    done = machine.run(f"{_LOOK}; ls /run", mounts=mounts, KUBECONFIG="/run/key")
    assert done.stdout.split()[:3] == ["known_hosts", "outside", "inside"], done
    assert "key" not in done.stdout.split()[3:]


@pytest.mark.parametrize("home", [None, "/", "", "/nowhere/at/all"])
def test_there_is_no_home_directory(machine: Machine, home: str | None) -> None:
    """Nothing is taken for it: the project is real. No variable, no account: as with `docker run --user 12345`."""
    done = machine.run("touch made; pwd", HOME=home)
    assert done.stdout == f"{machine.project}\n", done
    assert (machine.project / "made").exists()
    assert not os.path.lexists("/nowhere")


def test_home_and_project_are_reached_by_links(machine: Machine) -> None:
    (machine.folder / "link").symlink_to("home")
    done = machine.run(_LOOK, cwd=machine.folder / "link" / "project", HOME=str(machine.folder / "link"))
    assert_usual(machine, done)


@pytest.mark.parametrize(("error", "said"), [("EPERM", "needs Linux 5.11"), ("ENODEV", "no overlay file system")])
def test_there_are_no_overlays_for_ordinary_users(users: Machine, error: str, said: str) -> None:
    done = users.run("echo started", patches=NO_OVERLAY % (error, error))
    assert done.stdout == ""
    assert said in done.stderr
    assert "--files host" in done.stderr


def test_what_an_earlier_run_left_does_not_lead_the_next_one_astray(machine: Machine, tmp_path: Path) -> None:
    """It put a link in the place of a folder in its layer; later that folder is to be shared for real."""
    victim = machine.give_folder("victim")
    project = machine.give_folder("work") / "deep"
    project.mkdir()
    machine.give(project)
    work = project.parent
    first = machine.run(f"rm -r {work} && ln -s {victim} {work} && readlink {work}", "--new", "--name", "box")
    assert first.stdout == f"{victim}\n", first
    second = machine.run("echo started", "--name", "box", cwd=project)
    assert second.stdout == "", second
    assert "put a file or a link into the path" in second.stderr
    assert list(victim.iterdir()) == []


def test_folders_of_the_user_in_folders_of_others(users: Machine) -> None:
    """/srv/people/me: in a user namespace nothing could be written there, since /srv/people has no owner in it."""
    mounts = (
        f"mount -t tmpfs t /srv; mkdir -p /srv/people/me/deep /srv/people/other; chown -R {USER}:{USER} /srv/people/me"
    )
    script = "touch /srv/people/me/deep/new && ls /srv/people /srv/people/me/deep; touch /srv/people/other/new"
    done = users.run(script, mounts=mounts)
    assert done.stdout.split()[1:3] == ["me", "other"], done
    assert done.stdout.split()[-1] == "new", done


def test_what_is_mounted_in_the_project_is_shared_with_it(machine: Machine) -> None:
    (machine.project / "point").mkdir()
    mounts = 'mount -t tmpfs -o mode=777 t "$MACHINE_HOME/project/point"; echo m > "$MACHINE_HOME/project/point/file"'
    done = machine.run("cat point/file; echo changed > point/new && cat point/new; touch made", mounts=mounts)
    assert done.stdout.split() == ["m", "changed"], done
    assert (machine.project / "made").exists()
