"""The copy-on-write view, made in a mount namespace of its own: as root, and as a user who may nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateways.redirected import require
from tests.support.jails.forked import UIDS

pytestmark = pytest.mark.thorough

_ENTER = """
import errno, os, socket, stat, sys
from exeat.jail import libc
from exeat.jail.files import view
from exeat.paths import is_below
from exeat.jail.libc import MS_BIND, MS_PRIVATE, MS_REC, mount
uid, scene = int(sys.argv[1]), sys.argv[2]
if os.geteuid() != uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    libc.prctl(libc.PR_SET_DUMPABLE, 1)  # else /proc/self is root's
own_users = uid != 0
libc.unshare(libc.CLONE_NEWNS | (libc.CLONE_NEWUSER if own_users else 0))
if own_users:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
        open(f"/proc/self/{name}", "w").write(text)
mount(None, "/", None, MS_REC | MS_PRIVATE)
def enter(real=(), **wishes):
    layers = view.Layers(real, limit=wishes.pop("limit", 64 << 20), own_folders=["/var/tmp", scene], **wishes)
    held = view.enter_view(layers, own_users=own_users)
    view.forget_host()
    return held
def fails(act, *args):
    try:
        act(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "no"
"""


@pytest.fixture(params=UIDS, ids=lambda uid: f"uid{uid}")
def uid(request: pytest.FixtureRequest) -> int:
    require()
    return int(request.param)


@pytest.fixture
def scene(uid: int) -> Iterator[Path]:
    """A folder of the user's own, not below one that only root may enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chown(name, uid, uid)
        folder = Path(name) / "own"
        folder.mkdir()
        (folder / "file").write_text("outside")
        (folder / "project").mkdir()
        for path in (folder, *folder.iterdir()):
            os.chown(path, uid, uid)
        yield folder


def inside(uid: int, scene: Path, program: str) -> str:
    """What a program prints that is about to enter a view. It sees nothing that only root may read."""
    done = subprocess.run(
        [_python(uid), "-c", _ENTER + program, str(uid), str(scene)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": _code(uid, scene), "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _python(uid: int) -> str:
    return sys.executable if uid == os.geteuid() else "/usr/bin/python3"


def _code(uid: int, scene: Path) -> str:
    """Where the package is; a copy for someone who may not read it."""
    source = Path(__file__).parents[4] / "src"
    if uid == os.geteuid():
        return str(source)
    copy = scene.parent / "code"
    if not copy.exists():
        subprocess.run(["cp", "-r", str(source), str(copy)], check=True)
    return str(copy)


def test_what_is_written_stays_inside_and_what_is_shared_does_not(uid: int, scene: Path) -> None:
    program = """
enter([f"{scene}/project"])
open(f"{scene}/file", "w").write("inside"); open(f"{scene}/new", "w").close()
open(f"{scene}/project/kept", "w").write("real")
print(open(f"{scene}/file").read(), sorted(os.listdir(scene)))
"""
    assert inside(uid, scene, program) == "inside ['file', 'new', 'project']\n"
    assert (scene / "file").read_text() == "outside"
    assert not (scene / "new").exists()
    assert (scene / "project" / "kept").read_text() == "real"


def test_folders_can_be_removed_and_made_again(uid: int, scene: Path) -> None:
    (scene / "folder").mkdir()
    (scene / "folder" / "in it").touch()
    for path in (scene / "folder", scene / "folder" / "in it"):
        os.chown(path, uid, uid)
    program = """
enter()
os.unlink(f"{scene}/folder/in it"); os.rmdir(f"{scene}/folder"); print(os.path.exists(f"{scene}/folder"))
os.mkdir(f"{scene}/folder"); print(os.listdir(f"{scene}/folder"))
"""
    assert inside(uid, scene, program) == "False\n[]\n"
    assert (scene / "folder" / "in it").exists()


def test_no_socket_and_no_pipe_of_the_host_leads_out(uid: int, scene: Path) -> None:
    """Bound before the view and after it; with one that is shared for real as the control."""
    program = """
for name in ("early", "project/shared"):
    globals()[name] = listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{scene}/{name}"); listener.listen()
os.mkfifo(f"{scene}/pipe")
waiting = os.open(f"{scene}/pipe", os.O_RDONLY | os.O_NONBLOCK)
ready, go = os.pipe(), os.pipe()
outside = os.fork()
if outside == 0:  # stays with the host's files
    os.read(ready[0], 1)
    late = socket.socket(socket.AF_UNIX); late.bind(f"{scene}/late"); late.listen()
    os.write(go[1], b"x"); os.read(ready[0], 1); os._exit(0)
libc.unshare(libc.CLONE_NEWNS)
enter([f"{scene}/project"])
os.write(ready[1], b"x"); os.read(go[0], 1)
for name in ("early", "late", "project/shared"):
    print(name, os.path.exists(f"{scene}/{name}"), fails(socket.socket(socket.AF_UNIX).connect, f"{scene}/{name}"))
print(fails(os.open, f"{scene}/pipe", os.O_WRONLY | os.O_NONBLOCK))
os.kill(outside, 9)
"""
    said = inside(uid, scene, program).splitlines()
    assert said[0] == "early True ECONNREFUSED"
    assert said[1].split()[2] in ("ECONNREFUSED", "ENOENT")
    assert said[2] == "project/shared True no"
    assert said[3] == "ENXIO"  # no one reads there, as far as the view goes


def test_what_is_mounted_in_a_folder_is_layered_too(uid: int, scene: Path) -> None:
    """A folder with a mount in it has its files, its links and its other folders; what is large can be read."""
    program = """
os.mkdir(f"{scene}/folder"); os.mkdir(f"{scene}/folder/point"); os.mkdir(f"{scene}/folder/other")
open(f"{scene}/folder/small", "w").write("s"); open(f"{scene}/folder/large", "w").write("l" * 1_100_000)
open(f"{scene}/folder/other/deep", "w").write("d")
os.symlink("small", f"{scene}/folder/link"); os.mkfifo(f"{scene}/folder/pipe")
mount("test", f"{scene}/folder/point", "tmpfs"); open(f"{scene}/folder/point/mounted", "w").write("m")
if own_users:  # in a namespace below, what is mounted here is locked
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
    open("/proc/self/gid_map", "w").write(f"{uid} {uid} 1")
enter()
at = f"{scene}/folder"
print(sorted(set(os.listdir(at)) - {"pipe"}))
print(open(f"{at}/link").read(), len(open(f"{at}/large").read()), open(f"{at}/point/mounted").read())
for name in ("small", "other/deep", "point/mounted", "point/new", "new"):
    open(f"{at}/{name}", "w").write("changed")
"""
    said = inside(uid, scene, program).splitlines()
    assert said == ["['large', 'link', 'other', 'point', 'small']", "s 1100000 m"]
    assert (scene / "folder" / "small").read_text() == "s"
    assert (scene / "folder" / "other" / "deep").read_text() == "d"
    assert not (scene / "folder" / "new").exists()


def test_a_full_layer_is_a_full_disk_and_nothing_worse(uid: int, scene: Path) -> None:
    program = """
enter([f"{scene}/project"], limit=2 << 20)
def fill():
    with open(f"{scene}/big", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 16))
print(fails(fill)); os.unlink(f"{scene}/big")
open(f"{scene}/small", "w").write("fits again"); open(f"{scene}/project/real", "w").write("not in the layer")
"""
    assert inside(uid, scene, program) == "ENOSPC\n"


def test_the_layers_are_not_to_be_found_inside(uid: int, scene: Path) -> None:
    """By no mount point and by no folder of a process; whoever holds the descriptor has them."""
    program = """
held = enter()
open(f"{scene}/new", "w").write("n")
uppers = [each for each in view.open_uppers(held) if is_below(scene, each[0])]
part, upper = max(uppers, key=lambda each: len(each[0]))
inside = os.path.relpath(f"{scene}/new", part)
print(os.stat(inside, dir_fd=upper).st_size)
os.close(upper); os.close(held)
print([line.split()[4] for line in open("/proc/self/mountinfo") if " tmpfs " in line and "exeat" in line])
print(os.path.exists("/run/layer"), os.path.exists("/dev/layer"))
"""
    assert inside(uid, scene, program).splitlines() == ["1", "[]", "False False"]


def test_earlier_layers_and_masks_lie_below(uid: int, scene: Path) -> None:
    """What an earlier run wrote is there; what is masked is not; what an earlier run wrote over a mask is."""
    program = """
kept = f"{scene}/state/kept"; place = f"{kept}{scene}"
os.makedirs(place); open(f"{place}/from before", "w").write("b"); open(f"{place}/secret", "w").write("own")
open(f"{scene}/secret", "w").write("host"); open(f"{scene}/other secret", "w").write("host")
def mask(descriptor, mark):
    os.makedirs(f"/proc/self/fd/{descriptor}{scene}")
    for name in ("secret", "other secret"):
        os.mknod(f"/proc/self/fd/{descriptor}{scene}/{name}", stat.S_IFCHR | 0o600, 0)
enter(kept=[kept], apart=f"{scene}/state", fill_mask=mask)
print(open(f"{scene}/from before").read(), open(f"{scene}/secret").read(), fails(open, f"{scene}/other secret"))
"""
    assert inside(uid, scene, program) == "b own ENOENT\n"


def test_a_layer_on_disk(scene: Path, uid: int) -> None:
    """Where memory cannot hold one."""
    program = """
view.can_be_marked = lambda folder: False
print(fails(enter)) if own_users else print("ENOTSUP")
os.mkdir(f"{scene}/disk")
enter(on_disk=f"{scene}/disk")
open(f"{scene}/new", "w").write("n")
"""
    assert inside(uid, scene, program) == "ENOTSUP\n"
    assert not (scene / "new").exists()
    assert bool(list((scene / "disk").rglob("new"))) == (uid != 0)
