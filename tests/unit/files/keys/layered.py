"""A home directory under a real overlay with a mask, in namespaces of its own: what a command would see."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from exeat.files.keys.hidden import HiddenPath
from exeat.files.keys.masking import build_mask
from exeat.jail.libc import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_DUMPABLE,
    mount,
    prctl,
    unshare,
)
from tests.support.jails.forked import attempt

# Root, and a user who is not the one that stands for owners without a number in a user namespace.
UIDS = (0, 43210) if os.geteuid() == 0 else (os.geteuid(),)


def home_of(uid: int) -> Iterator[Path]:
    """An empty home directory of a user, in a folder that others may pass through."""
    base = Path(tempfile.mkdtemp()).resolve()
    base.chmod(0o755)
    home = base / "home"
    home.mkdir(mode=0o700)
    give(home, uid)
    yield home
    shutil.rmtree(base)


def give(path: Path, uid: int) -> Path:
    """Let the path, and all that is in it, be this user's."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)
    return path


def write(path: Path, text: str = "secret", mode: int = 0o600) -> Path:
    """A file, with the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def see(base: Path, hidden: list[HiddenPath], uid: int, *looks: Callable[[Path], object]) -> str:
    """Layer `base` with a mask made of the hidden paths, as a jail does, and look at it. Says how that ended.

    Each look gets the folder that stands for `base`, and fails the test by an assertion.
    """
    view = base / "view"
    return attempt(
        lambda: _layer(base, hidden, uid, view), *(lambda each=look: each(view / "root") for look in looks), uid=uid
    )


def _layer(base: Path, hidden: list[HiddenPath], uid: int, view: Path) -> None:
    mark = "trusted.overlay.opaque" if uid == 0 else "user.overlay.opaque"
    unshare(CLONE_NEWNS | (CLONE_NEWUSER if uid else 0))
    if uid:
        prctl(PR_SET_DUMPABLE, 1)  # else the files below are root's, since we were root
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("stage", str(view), "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
    for name in ("root", "mask", "upper", "work"):
        (view / name).mkdir()
    mask = os.open(view / "mask", os.O_RDONLY | os.O_DIRECTORY)
    build_mask(mask, hidden, opaque_xattr=mark)
    over = view / f"mask{base}"
    lower = f"{over}:{base}" if over.exists() else str(base)
    options = f"lowerdir={lower},upperdir={view}/upper,workdir={view}/work" + (",userxattr" if uid else "")
    mount("overlay", str(view / "root"), "overlay", MS_NOSUID | MS_NODEV, options)
