"""Folders of the user's that lie in folders of others. For the builder, in a user namespace.

To write in a folder, all above it are copied to the layer, with their owners. In a user namespace there are no others,
and the kernel would refuse it (EOVERFLOW). So, in the view, the ways to the user's own folders are the user's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from exeat.jail.files.mounttable import MountTable

# No user has folders there, or not at this depth.
_SYSTEMS: Final = frozenset((
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "lost+found", "nix", "proc", "root", "run", "sbin",
    "snap", "sys", "tmp", "usr", "var",
))  # fmt: skip
_MAX_LOOKS: Final = 500


def take_over_ways(mask: str, folders: Iterable[str]) -> None:
    """Make the user the owner of these folders and of all above them, by folders in the mask."""
    uid = os.geteuid()
    for folder in folders:
        parts = folder.split("/")[1:]
        for count in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:count])
            try:
                found = os.stat(path, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    break
                if os.path.isdir(f"{mask}{path}"):
                    continue
                if found.st_uid == uid and count == len(parts):
                    break
                os.mkdir(f"{mask}{path}", 0o700)
                os.chmod(f"{mask}{path}", stat.S_IMODE(found.st_mode))
            except OSError:
                break  # hidden, or not there


def own_folders_elsewhere(silent: Collection[str]) -> list[str]:
    """Such as /srv/people/me. What lies deeper is not looked for: docs/limits.md. `silent` mounts are not touched."""
    uid, looks = os.geteuid(), _MAX_LOOKS
    without = {*silent, *MountTable().of_kind("autofs")}  # to look into one of these may wait for a mount
    found: list[str] = []
    for top in _folders_in("/", without):
        if top[1:] in _SYSTEMS:
            continue
        for folder in _folders_in(top, without):
            for inner in _folders_in(folder, without):
                looks -= 1
                if looks < 0:
                    return found
                if _owner(inner) == uid:
                    found.append(inner)
    return found


def _folders_in(folder: str, without: Collection[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{folder.rstrip('/')}/{entry.name}"
                if path not in without and entry.is_dir(follow_symlinks=False):
                    yield path
    except OSError:
        return  # closed to the user, or gone


def _owner(path: str) -> int:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return -1
