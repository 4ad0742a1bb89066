"""What a container sees of files: the project, and in it nothing that decides about it or runs outside later."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines.base import DOCKER_GROUP, Base
from tests.support.engines.runs import Work, at_work
from tests.support.runs.running import Running, exeat

KEY = "a key that is not for the command"
_PYTHON = "/usr/bin/python3"

# Each is tried, and told with what came of it. In the order of the arguments: some undo what others need.
_TRY = r"""
import ctypes, json, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def plant(path):
    with open(path, "a") as file:
        file.write("planted")
def swap(path):
    os.rename(path, path + "-away")
def replace(path):
    plant("draft")
    os.replace("draft", path)
def remove(path):
    os.unlink(path)
def second(path):
    os.link(path, "second")
    plant("second")
def link(path):
    os.unlink(path)
    os.symlink("elsewhere", path)
def read(path):
    with open(path) as file:
        return file.read()
def list(path):
    return str(sorted(os.listdir(path)))
def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)
def away(path):
    # Another user namespace, in which nothing is a mount point, and a descriptor from before.
    holder, own, group = os.open(".", os.O_RDONLY), os.getuid(), os.getgid()
    if libc.unshare(0x10020000) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{own} {own} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount")
    os.chdir("/tmp")
    os.mkdir("old")
    libc.syscall(155 if platform.machine() == "x86_64" else 41, b".", b"old")
    os.chdir("/")
    libc.umount2(b"/old", 2)
    os.rename(path, path + "-away", src_dir_fd=holder, dst_dir_fd=holder)
said = {}
for each in sys.argv[1:]:
    how, path = each.split("=", 1)
    try:
        said[each] = globals()[how](path) or "done"
    except OSError as error:
        said[each] = f"refused: {error.strerror}"
print(json.dumps(said))
"""


@pytest.fixture
def work(engine: Base) -> Iterator[Work]:
    with at_work(engine) as made:
        git = ("config", "hooks/pre-commit", "HEAD", "refs/heads/.keep", "objects/.keep")
        for name in (*(f".git/{each}" for each in git), ".vscode/tasks.json", ".mcp.json", "src/file"):
            made.write(f"work/project/{name}", "mine\n")
        made.write("work/project/.git/HEAD", "ref: refs/heads/main\n")
        made.write("work/project/.git/config", "[core]\n\tbare = false\n")
        made.write("work/project/agents/settings.json", "mine\n")
        (made.project / ".claude").symlink_to("agents")
        made.write("work/project/rules/allow.txt", f"# {KEY}\nexample.com\n")
        made.write("work/project/rules/deep/audit.log", "")
        made.write(".ssh/id_ed25519", KEY)
        made.write("data/file", "from outside")
        made.engine.give(made.home)
        yield made


def _tried(work: Work, *tries: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    done = work.inside(_PYTHON, "-I", "-c", _TRY, *tries, options=options)
    assert done.status == 0, done.stderr
    return dict(json.loads(done.stdout))


_RUNS_LATER = (
    "plant=.git/config", "replace=.git/config", "second=.git/config", "remove=.git/config",
    "plant=.git/hooks/pre-commit", "swap=.git/hooks", "plant=.vscode/tasks.json", "swap=.vscode", "replace=.mcp.json",
    "plant=.claude/settings.json", "swap=agents", "away=.git", "swap=.git",
)  # fmt: skip
_DECIDES = (
    "read=rules/allow.txt", "plant=rules/allow.txt", "plant=rules/deep/audit.log", "swap=rules/deep", "swap=rules",
)  # fmt: skip


@pytest.mark.threat("T-M1", "T-M2", "T-M5", "T-L8")
def test_what_runs_outside_later_and_what_decides_is_held(work: Work) -> None:
    """By every way: in place, by another file, by moving what leads there, by a second name, from other namespaces."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(work.project / "src/app.sock"))
        listening.listen()
        (work.project / "src/app.sock").chmod(0o777)
        options = ("--policy", "rules/allow.txt", "--audit", "rules/deep/audit.log")
        tries = (*_RUNS_LATER, *_DECIDES, "connect=src/app.sock", "plant=src/file", "plant=.git/HEAD")
        said = _tried(work, *tries, options=options)
        control = work.outside(_PYTHON, "-I", "-c", _TRY, "connect=src/app.sock", *_DECIDES, *_RUNS_LATER)
    done = {each for each, what in said.items() if not what.startswith("refused")}
    assert done == {"plant=src/file", "plant=.git/HEAD"}, said
    outside = json.loads(control.stdout)
    undone = {each for each, what in outside.items() if what.startswith("refused")}
    assert undone == {"swap=.git"}, "outside all of it can be done, but for what is gone by then"
    assert KEY in outside["read=rules/allow.txt"]


@pytest.mark.threat("T-M1", "T-M2")
def test_new_ones_do_not_stay_and_replaced_ones_are_held_again(work: Work, tmp_path: Path) -> None:
    """Git and editors outside put a new file in the place of the old one, which takes the mount along."""
    script = """
mkdir .idea; echo x > .envrc
while [ -e .idea ] || [ -e .envrc ]; do sleep 0.01; done
cat rules/allow.txt; echo ready
while [ ! -e go ]; do sleep 0.01; done
while [ -w .git/config ] || grep -q key rules/allow.txt; do sleep 0.01; done
echo x >> .git/config; cat rules/allow.txt; echo end
"""
    options = work.options("--policy", "rules/allow.txt")
    settings: dict[str, Any] = {"before": work.engine.before, "cwd": work.project, "env": work.environ}
    with Running(tmp_path, *options, command=["sh", "-c", script], **settings) as running:
        running.wait_for("ready")
        for name in (".git/config", "rules/allow.txt"):
            draft = work.project / "draft"
            draft.write_text(f"# {KEY}, renewed\n")
            work.engine.give(draft)
            draft.rename(work.project / name)
        (work.project / "go").touch()
        if work.engine.way is not DOCKER_GROUP:
            running.wait_for("end")
        running.wait()
        assert KEY not in running.out
        assert f"{work.project}/.envrc was made while the command ran, and is now" in running.errors
        if work.engine.way is DOCKER_GROUP:  # who may only talk to the engine has no way to the mounts
            assert "can no longer be protected" in running.errors
            assert running.process.returncode == 2
    assert (work.project / ".git/config").read_text() == f"# {KEY}, renewed\n"
    names = {path.name for path in work.project.iterdir()}
    assert {".idea", ".envrc"}.isdisjoint(names)
    assert {".idea.exeat-blocked", ".envrc.exeat-blocked"} <= names


@pytest.mark.threat("T-M2", "T-M8")
def test_what_is_named_is_there_and_nothing_else(work: Work) -> None:
    """A home is not shared by being the working directory; named, it is without its keys."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(work.home / "data/named.sock"))
    listening.listen()
    (work.home / "data/named.sock").chmod(0o777)
    data = work.home / "data"
    options = ["--mount", f"{data}:/mnt/data", "--mount", f"{data}:/mnt/ro:ro", "--mount", f"{work.home}:/mnt/home:ro"]
    options += ["--read-only", "src", "--hide", "hidden.txt", "--unix", f"{data}/named.sock"]
    work.engine.give(work.write("work/project/hidden.txt", KEY))
    tries = [
        "plant=/mnt/data/file", "plant=/mnt/ro/file", "read=/mnt/ro/file", "read=/mnt/home/.ssh/id_ed25519",
        "plant=src/new", "swap=src", "read=hidden.txt", "read=/mnt/home/work/project/hidden.txt",
        f"connect={data}/named.sock", "connect=/mnt/data/named.sock", f"read={work.home}/.ssh/id_ed25519",
        "plant=/etc/new", "plant=/tmp/new", "list=/mnt/home/state",
    ]  # fmt: skip
    with listening:
        said = _tried(work, *tries, options=tuple(options))
    done = {each: what for each, what in said.items() if not what.startswith("refused")}
    assert done == {
        "plant=/mnt/data/file": "done",
        "read=/mnt/ro/file": "from outsideplanted",
        f"connect={data}/named.sock": "done",
        "connect=/mnt/data/named.sock": "done",
        "plant=/tmp/new": "done",
        "list=/mnt/home/state": "[]",
    }, said
    assert (data / "file").read_text() == "from outsideplanted"
    at_home = exeat(
        *work.options(), command=["sh", "-c", "pwd; ls -A"], before=work.engine.before, env=work.environ, cwd=work.home
    )
    home = "/root" if work.engine.uid is None else "/home/sandbox"
    assert at_home.stdout.split()[0] == home
    assert {"data", "work", ".ssh"}.isdisjoint(at_home.stdout.split()), "Podman copies what the image has there"
    assert "your home directory, so the container does not have it" in at_home.stderr
    assert not list((work.home / "state/running").iterdir())
