"""What a container sees of files: the project, and in it nothing that decides about it or runs outside later."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines.base import Base
from tests.support.engines.runs import Work, at_work

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
    "read=rules/allow.txt",
    "plant=rules/allow.txt",
    "plant=rules/deep/audit.log",
    "swap=rules/deep",
    "swap=rules",
)


@pytest.mark.threat("T-M1", "T-M2", "T-M5")
def test_what_runs_outside_later_and_what_decides_is_held(work: Work) -> None:
    """By every way: in place, by another file, by moving what leads there, by a second name, from other namespaces."""
    before = _texts(work.project)
    listening = socket.socket(socket.AF_UNIX)
    with listening:
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
    assert before


def _texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
