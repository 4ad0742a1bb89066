"""With `--nest` a command can leave all mounts behind, and with them what holds files of the project."""

from __future__ import annotations

import pytest

from tests.support.runs.owned import git, owned
from tests.support.runs.running import AS_ROOT, NOBODY, PYTHON

pytestmark = pytest.mark.threat("T-M1", "T-M5")

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
