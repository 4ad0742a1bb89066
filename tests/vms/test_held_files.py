"""What is protected in the project is protected in a guest as well, also when it is replaced outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fixtures.vms import Guest
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import BY_USER, Running, folder_of, python

pytestmark = pytest.mark.threat("T-V70")

_PROTECTED = (".envrc", ".git/config", ".git/hooks/pre-commit")
# A write that is refused as everywhere in the project, or not; what the guest sees; and what it may write.
_TRY = """
import os, sys, time
def write(path):
    try:
        with open(path, "a") as file:
            file.write("planted")
    except OSError as error:
        return error.strerror
    return "written"
def content(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return error.strerror
paths = sys.argv[1:]
print("before", *(write(path) for path in paths), sep="|", flush=True)
while content("go") != "# new":
    time.sleep(0.1)
time.sleep(2)  # what the guest's kernel remembers of names is over after a second
print("seen", *(content(path) for path in paths), sep="|")
print("after", *(write(path) for path in paths), sep="|")
print("control", write("mine"), write(".git/mine"), sep="|")
"""


def _make_repository(folder: Path, uid: int | None) -> None:
    for name in ("objects", "refs", "hooks"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for name in _PROTECTED:
        (folder / name).write_text("# old")
    if uid is not None:
        for path in folder.rglob("*"):
            os.chown(path, uid, uid)


def _replace(path: Path) -> None:
    """As editors and git do."""
    new = path.with_name(f"{path.name}.lock")
    new.write_text("# new")
    found = path.parent.stat()
    os.chown(new, found.st_uid, found.st_gid)
    new.rename(path)


@BY_USER
def test_what_is_replaced_outside_is_held_again(guest: Guest, tmp_path: Path, uid: int | None) -> None:
    with folder_of(uid) as folder:
        _make_repository(folder, uid)
        options = (*guest.options, "--guest-root")
        command = python(_TRY, *_PROTECTED)
        with Running(tmp_path, *options, command=command, uid=uid, cwd=folder) as run:
            run.wait_for("before|" + "|".join(["Read-only file system"] * len(_PROTECTED)))
            mounts = Path(f"/proc/{run.init().pid}/mountinfo")
            for name in _PROTECTED:
                _replace(folder / name)
            wait_until(lambda: _are_held(mounts, folder), "the guard")
            _replace(folder / "go")
            assert run.wait() == 0, run.errors
        assert [(folder / name).read_text() for name in _PROTECTED] == ["# new"] * len(_PROTECTED)
        told = dict(line.split("|", 1) for line in run.out.splitlines())
        assert told["seen"] == "|".join(["# new"] * len(_PROTECTED))
        assert told["after"] == "|".join(["Read-only file system"] * len(_PROTECTED))
        assert told["control"] == "written|written"


def _are_held(mounts: Path, folder: Path) -> bool:
    """In the view: the guard has seen to it."""
    lines = [line.split() for line in mounts.read_text().splitlines()]
    read_only = {at for *_, at, how in (line[:6] for line in lines) if how.startswith("ro,")}
    return all(f"{folder}/{name}" in read_only for name in _PROTECTED[:2])
