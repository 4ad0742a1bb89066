"""Shared folders with --nest: mounts do not hold what must not be changed there, so it is put back in the end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jails.stage import Caller, Stage
from tests.support.programs import need
from tests.support.runs.owned import git, owned
from tests.support.runs.running import AS_ROOT, NOBODY, PYTHON

pytest.importorskip("exeat.run.files.seen_files", reason="needs the view")

# Each name is renamed to where no mount is, changed there, and renamed back: through a descriptor, in a namespace that
# has lost all mounts. In the end it is the same file. Of `a//b`, a is renamed and b in it changed.
_ATTACK = """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
def do(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def mount(source, target, kind=None, flags=0):
    do(libc.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None))
project, user, group = os.getcwd(), os.getuid(), os.getgid()
for name in sys.argv[1:]:
    try:
        with open(name, "a") as file:
            file.write("planted")
        print("written", name)
    except OSError:
        pass
do(libc.unshare(0x10020000))
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
os.makedirs("aside", exist_ok=True)
holder = os.open(project, os.O_RDONLY)
mount("none", "/srv", "tmpfs")
os.mkdir("/srv/aside")
os.mkdir("/srv/old")
mount(f"{project}/aside", "/srv/aside", None, 0x1000)
os.chdir("/srv")
do(libc.syscall(155 if platform.machine() == "x86_64" else 41, b".", b"old"))
os.chdir("/")
do(libc.umount2(b"/old", 2))
for name in sys.argv[1:]:
    moved, _, inner = name.partition("//")
    os.rename(moved, "aside/x", src_dir_fd=holder, dst_dir_fd=holder)
    with open(f"/aside/x/{inner}" if inner else "/aside/x", "a") as file:
        file.write("planted")
    os.rename("aside/x", moved, src_dir_fd=holder, dst_dir_fd=holder)
    print("changed", name)
"""
_HELD = (".git/config", ".envrc", ".vscode//tasks.json")
_MAKE = "git init -q . && mkdir -p .vscode && echo mine > .envrc && echo mine > .vscode/tasks.json && echo mine > free"


@pytest.fixture
def project(stage: Stage) -> Iterator[tuple[Caller, Path]]:
    need("git")
    caller = stage.caller("user")
    made = stage.run(caller, "sh", "-c", f"rm -rf nested && mkdir nested && cd nested && {_MAKE}")
    assert made.returncode == 0, made.stderr
    yield caller, caller.home / "nested"
    stage.run(caller, "rm", "-rf", "nested")


@pytest.mark.threat("T-M5")
def test_what_is_held_is_as_it_was(stage: Stage, project: tuple[Caller, Path]) -> None:
    caller, folder = project
    before = [(folder / name).read_text() for name in _HELD]
    attack = (stage.installation.python, "-I", "-c", _ATTACK)
    words = [*stage.exeat("run", "--nest", "--"), *attack, *_HELD, "free"]
    done = stage.run(caller, "sh", "-c", 'cd nested && exec "$@"', "sh", *words)
    changed = [f"changed {name}" for name in (*_HELD, "free")]
    assert done.stdout.splitlines() == ["written free", *changed], f"the control: it gets there\n{done.stderr}"
    assert [(folder / name).read_text() for name in _HELD] == before
    assert "planted" in (folder / "free").read_text()
    for name in _HELD:
        assert f"/{name.replace('//', '/')} was changed, and is as it was" in done.stderr


@pytest.mark.threat("T-M5")
def test_a_socket_of_the_host_in_it_stops_the_run(stage: Stage, project: tuple[Caller, Path]) -> None:
    """It could only be covered."""
    caller, folder = project
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "app.sock"))
        listener.listen()
        words = stage.exeat("run", "--nest", "--", "echo", "ran")
        done = stage.run(caller, "sh", "-c", 'cd nested && exec "$@"', "sh", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "app.sock" in done.stderr


# A file system of its own without a mount in it, and a descriptor of the project from before.
_LEAVE_MOUNTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid = os.getuid()
project = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
if libc.unshare(0x10000000 | 0x20000) != 0:
    sys.exit("no user namespace")
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
libc.mount(None, b"/", None, 0x44000, None)
libc.mount(b"own", b"/tmp", b"tmpfs", 0, None)
os.chdir("/tmp")
os.mkdir("old")
libc.pivot_root(b".", b"old")
os.chdir("/")
libc.umount2(b"/old", 2)
made = os.open("new", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=project)
os.write(made, b"[core]\\n\\tfsmonitor = touch /tmp/out\\n")
os.rename("new", ".git/config", src_dir_fd=project, dst_dir_fd=project)
"""


@pytest.mark.threat("T-M1", "T-M5")
@AS_ROOT
@pytest.mark.parametrize("options", [(), ("--nest",)], ids=["without", "with"])
def test_the_repositorys_settings_stay_what_they_were(options: tuple[str, ...]) -> None:
    """Whether the run is refused, or what was changed is put right at its end."""
    with owned(NOBODY) as there:
        git(there.project, "init", "-q")
        there.give(there.project, *there.project.rglob("*"))
        config = there.project / ".git" / "config"
        before = config.read_text()
        there.inside(PYTHON, "-I", "-S", "-c", _LEAVE_MOUNTS, options=options)
        assert config.read_text() == before
