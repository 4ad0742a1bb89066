"""Where QEMU and virtiofsd are: what a program has that has taken one of them over. Another program is put there."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests.support.fixtures.vms import Guest
from tests.support.runs.running import BY_USER, NOBODY, PYTHON, as_user, exeat, folder_of

pytestmark = pytest.mark.threat("T-V71")

_HIDDEN = "/usr/bin/yes"
# exeat, but for the program that it starts; what that says is shown as a program's last words are.
_EXEAT = """
import sys
import exeat.jail.vm.shares as shares, exeat.jail.vm.children as children
place, program, *rest = sys.argv[1:]
qemu, probe = children.qemu_arguments, ["PYTHON", "-I", "-S", "-c", program]
if place == "qemu":
    children.qemu_arguments = lambda *given: (qemu(*given), probe)[1]
else:
    children.qemu_arguments = lambda *given: (qemu(*given), ["/bin/sleep", "60"])[1]
    shares.Server.arguments = lambda self: probe
sys.argv = ["exeat", "run", *rest]
import exeat.__main__
""".replace("PYTHON", PYTHON)
_PROBE = """
import json, os, socket, sys
def tried(act):
    try:
        return act() or "done"
    except OSError as error:
        return os.strerror(error.errno)
def written(path):
    with open(path, "ab") as file:
        file.write(b"planted")
def read(path):
    with open(path, "rb") as file:
        return len(file.read(64))
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
with open("/proc/self/limits") as file:
    (files,) = [line.split()[3:5] for line in file if line.startswith("Max open files")]
found = {
    "files": files,
    "seen": sorted(os.listdir("/guest")),
    "devices": sorted(os.listdir("/dev")),
    "writes": {path: tried(lambda: written(path)) for path in ("/x", "/etc/x", "/tmp/x", "/usr/x", "/boot/initrd")},
    "project": tried(lambda: written("/guestPROJECT/mine")),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX).close()),
    "internet": tried(lambda: socket.socket(socket.AF_INET).close()),
    "hidden": tried(lambda: read("HIDDEN")),
    "program": tried(lambda: read("/usr/bin/env")),
    "others": sorted({tried(lambda: os.readlink(f"/proc/{pid}/{what}")) for pid in others for what in ("root", "cwd")}),
    "memories": sorted({tried(lambda: open(f"/proc/{pid}/mem", "r+b").close()) for pid in others}),
}
print("FOUND " + json.dumps(found), file=sys.stderr, flush=True)
sys.exit(3)
""".replace("HIDDEN", _HIDDEN)


def _found(place: str, guest: Guest, uid: int | None) -> tuple[dict[str, Any], bool]:
    """What a program there has, and whether it has changed the project."""
    with folder_of(uid) as folder:
        program = _PROBE.replace("PROJECT", str(folder))
        options = [*guest.options, "--guest-root", "--hide", _HIDDEN, "--", "true"]
        argv = [*as_user(uid), sys.executable, "-c", _EXEAT, place, program, *options]
        done = exeat(argv=argv, cwd=folder)
        said = done.stderr.partition("FOUND ")[2].partition("\n")[0]
        assert said, done.stderr
        return json.loads(said), (folder / "mine").exists()


@BY_USER
def test_the_place_of_qemu(guest: Guest, uid: int | None) -> None:
    found, is_changed = _found("qemu", guest, uid)
    assert (found["seen"], found["project"], is_changed) == ([], "No such file or directory", False)
    assert set(found["writes"].values()) == {"Read-only file system"}
    assert set(found["devices"]) <= {"null", "zero", "full", "random", "urandom", "kvm"}
    assert found["unix"] == "Address family not supported by protocol"
    assert (found["hidden"], found["program"]) == ("Permission denied", 64)
    assert found["others"] == found["memories"] == ["Permission denied"]
    assert found["internet"] == "done"
    assert all(int(limit) <= 1024 for limit in found["files"]), "each connection of the guest takes memory of QEMU's"


def test_the_place_of_what_serves_files(guest: Guest) -> None:
    """It has the guest's files, and neither terminals nor other processes."""
    found, is_changed = _found("files", guest, NOBODY if os.geteuid() == 0 else None)
    assert "usr" in found["seen"]
    assert (found["project"], is_changed) == ("done", True)
    assert set(found["writes"].values()) == {"Read-only file system"}
    assert set(found["devices"]) <= {"null", "zero", "full", "random", "urandom", "kvm"}
    assert found["unix"] == "Address family not supported by protocol"
    assert found["others"] == found["memories"] == ["Permission denied"]
