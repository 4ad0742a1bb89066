"""The files of a guest: the view of its jail, or an image with folders of the machine in it.

An image's environment is its own: nothing of the caller's is in it but what was named. Whom to trust is added to the
bundles of the image, and is in files of exeat's own, for the variables that name some.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from exeat.errors import ConfigError
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE
from exeat.jail.jail import Spec
from exeat.jail.vm.machine import MOST_SHARES
from exeat.jail.vm.options import HOME, HOST_NAME, ROOT_HOME
from exeat.jail.vm.settings import FileEntry, MountEntry, Settings
from exeat.jail.vm.shares import ROOT_TAG, Tree
from exeat.jail.vm.tree import GUEST
from exeat.paths import is_in, is_inside
from exeat.trust.unnamed_file import content_of
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.container.options import Mount

DISK_ROOT: Final = "disk:"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class GuestFiles(Value):
    """`shares`: folders of the jail's view that QEMU has, by name, and whether they are read-only; None: all of it."""

    root: str
    trees: tuple[Tree, ...]
    cwd: str
    hostname: str
    shares: dict[str, tuple[str, bool]] | None = None
    mounts: tuple[MountEntry, ...] = ()
    home: str = ""
    files: tuple[FileEntry, ...] = ()
    ca: bytes = b""

    def settings(self, uid: int, gid: int, groups: tuple[int, ...], forwards: tuple[int, ...]) -> Settings:
        return Settings(
            root=self.root,
            uid=uid,
            gid=gid,
            groups=groups,
            cwd=self.cwd,
            home=self.home,
            hostname=self.hostname,
            mounts=self.mounts,
            forwards=forwards,
            files=self.files,
            ca=self.ca,
        )


def files_of_view(spec: Spec, kind: str) -> GuestFiles:
    return GuestFiles(f"{kind}:{ROOT_TAG}", (Tree(),), spec.cwd, os.uname().nodename)


def files_of_image(spec: Spec, kind: str, *, is_root: bool) -> GuestFiles:
    """`kind`: how folders are served. Raises ConfigError for what cannot be."""
    mounts = sorted(spec.mounts, key=lambda mount: mount.target)  # what lies in another comes behind it
    if len(mounts) > MOST_SHARES:
        raise ConfigError(f"{len(mounts)} folders for one guest", where="--mount", expected=f"up to {MOST_SHARES}")
    shares: dict[str, tuple[str, bool]] = {}
    trees, entries = [], []
    for number, mount in enumerate(mounts):
        _refuse_file(mount)
        tag = f"m{number}"
        if not (path := _path_in_other(mount, mounts)):
            path = tag
            shares[tag] = (mount.source, mount.read_only)
        trees.append(Tree(tag, f"{GUEST}/{path}", mount.read_only))
        entries.append(MountEntry(kind, tag, mount.target, mount.read_only))
    is_there = any(mount.source == mount.target and is_in(spec.cwd, [mount.target]) for mount in mounts)
    home = ROOT_HOME if is_root else HOME
    found = GuestFiles(DISK_ROOT, tuple(trees), spec.cwd if is_there else home, HOST_NAME, shares, tuple(entries), home)
    if spec.trust is None:
        return found
    own = content_of(spec.trust.own)
    bundle = FileEntry(BUNDLE, 0o444, content_of(spec.trust.bundle))
    return found.replace(files=(bundle, FileEntry(OWN_CERTIFICATE, 0o444, own)), ca=own)


def complete_environment(environ: dict[str, str], inherited_terminal: str, home: str, *, has_terminal: bool) -> None:
    """What every program counts on and an image does not say."""
    environ.setdefault("PATH", _PATH)
    environ.setdefault("HOME", home)
    if has_terminal:
        environ.setdefault("TERM", inherited_terminal or "xterm")


def _path_in_other(mount: Mount, mounts: Sequence[Mount]) -> str:
    """Of a folder that lies in another one: what is held there later is held in both by that. "" for others."""
    if not mount.read_only:
        for number, other in enumerate(mounts):
            if not other.read_only and is_inside(mount.source, other.source) and not _path_in_other(other, mounts):
                return f"m{number}/{os.path.relpath(mount.source, other.source)}"
    return ""


def _refuse_file(mount: Mount) -> None:
    if not os.path.isdir(mount.source):
        raise ConfigError(
            f"{mount.source} is a file, and a guest with an image shares folders",
            where=f"--mount {mount.source}:{mount.target}",
            expected="the folder that it is in",
        )
