"""Strange machines, in mount namespaces of their own: a user with a home, some mounts, and `exeat run` on top."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import Finished
from tests.support.runs.running import as_user, environment, exeat

# Not the one that stands for owners without a number in a user namespace.
USER = 43210
_UNDER = 'cd "$1"; shift; exec "$@"'

# A machine in a container: the root is an overlay, and little else is mounted.
IN_OVERLAY = """
mount -t tmpfs stage /mnt; mkdir /mnt/u /mnt/w /mnt/r
mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r
"""
TWICE = """
mkdir /mnt/u2 /mnt/w2 /mnt/r2
mount -t overlay o -o lowerdir="/mnt/r$LOWER",upperdir=/mnt/u2,workdir=/mnt/w2 "$OVER"
"""
GO_IN = """
cd "$ROOT"; mount --rbind /proc proc; mount --rbind /sys sys; mount --rbind /dev dev
pivot_root . mnt; cd /; umount -l /mnt
"""
# FUSE without a program behind it. $1: `hangs`, or `dead` if no one will ever answer; $2: whose it is; $3: where.
FUSE = """
import ctypes, os, sys
how, uid, point = sys.argv[1:4]
fuse = os.open("/dev/fuse", os.O_RDWR)
os.set_inheritable(fuse, how == "hangs")
options = f"fd={fuse},rootmode=40000,user_id={uid},group_id={uid}".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"test", point.encode(), b"fuse", 0, options):
    sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[4], sys.argv[4:])
"""
# Folders that are mounted when someone looks, by someone who never does. One is there already.
AUTOFS = """
import ctypes, os, sys
point = sys.argv[1]
reading, writing = os.pipe()
os.set_inheritable(reading, True)
libc = ctypes.CDLL(None, use_errno=True)
daemon = os.fork()
if daemon == 0:
    os.setpgid(0, 0)
    options = f"fd={writing},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect".encode()
    ok = libc.mount(b"auto", point.encode(), b"autofs", 0, options) == 0
    if ok:
        os.mkdir(f"{point}/there")
        ok = libc.mount(b"t", f"{point}/there".encode(), b"tmpfs", 0, b"mode=777") == 0
        open(f"{point}/there/file", "w").write("mounted")
    os._exit(0 if ok else 1)
if os.waitpid(daemon, 0)[1]:
    sys.exit("no autofs here")
os.execvp(sys.argv[2], sys.argv[2:])
"""
# Linux 6.1, as far as exeat can tell: memory has no attributes that an ordinary user could set.
OLD_KERNEL = """
import os
_real = os.uname
class _Old:
    release = "6.1.0"
    def __getattr__(self, name): return getattr(_real(), name)
os.uname = lambda: _Old()
from exeat.jail.files import view
view._IN_MEMORY = "ramfs"
"""
NO_OVERLAY = """
import errno, os
from exeat.jail.files import layering
_mount = layering.mount
def _refuse(source, target, kind=None, flags=0, data=None):
    if kind == "overlay":
        raise OSError(errno.%s, f"mount: {os.strerror(errno.%s)}")
    _mount(source, target, kind, flags, data)
layering.mount = _refuse
"""
_START = """
import sys
from exeat.cli.start import console
sys.argv[0] = "exeat"
sys.exit(console())
"""


class Machine:
    """A user's home with keys and a project in it, in a folder that everybody can enter."""

    def __init__(self, folder: Path, uid: int) -> None:
        self.folder, self.uid = folder, uid
        self.home = folder / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        (self.home / "point").mkdir()
        (self.home / "file").write_text("outside\n")
        keys = self.home / ".ssh"
        keys.mkdir(mode=0o700)
        for name in ("id_rsa", "known_hosts"):
            (keys / name).write_text(name)
        self.give(folder)

    def give(self, path: Path) -> Path:
        """Let it be the user's, with all that is in it."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.uid, follow_symlinks=False)
        return path

    def give_folder(self, name: str) -> Path:
        """A folder of the user's next to the home directory."""
        (self.folder / name).mkdir()
        return self.give(self.folder / name)

    def run(
        self,
        script: str,
        *options: str,
        mounts: str = "",
        cwd: Path | str | None = None,
        patches: str = "",
        before: Sequence[str] = (),
        **variables: str | None,
    ) -> Finished:
        """`exeat run -- sh -c SCRIPT` under mounts that a shell script makes, as root, where no one else sees them."""
        wanted: dict[str, str | None] = {"HOME": str(self.home), "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None}
        env = environment(MACHINE_HOME=str(self.home))
        for key, value in (wanted | variables).items():
            env.pop(key, None)
            if value is not None:
                env[key] = value
        under = ["unshare", "-m", "sh", "-ec", f"{mounts}\n{_UNDER}", "sh", str(cwd or self.project)]
        return exeat(argv=self.argv(script, *options, patches=patches), before=[*under, *before], env=env, cwd="/")

    def argv(self, script: str, *options: str, patches: str = "") -> list[str]:
        how = ["-c", patches + _START] if patches else ["-m", "exeat"]
        user = as_user(self.uid) if self.uid != os.geteuid() else []
        return [*user, sys.executable, *how, "run", *options, "--", "sh", "-c", script]


@contextmanager
def machine_of(uid: int) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="exeat-machine-", dir="/var/tmp")).resolve()
    folder.chmod(0o755)
    try:
        yield Machine(folder, uid)
    finally:
        shutil.rmtree(folder)
