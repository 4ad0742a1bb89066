"""Replacements in the view for folders that the kernel cannot layer. For the builder.

A folder with mounts in it cannot be a layer in a user namespace: what is mounted there may hide something, so the
kernel does not let a user leave it out. Links and small files of such a folder are copied. Large files can only be
read, and the folders in it are left to the caller.

To write in a folder, all above it are copied to the layer, with their owners. In a user namespace there are no others,
and the kernel would refuse it (EOVERFLOW). So, in the view, the ways to the user's own folders are the user's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from exeat.jail.files.mounttable import MountTable
from exeat.paths import look, using

_MAX_ENTRIES: Final = 10_000
_COPIED_BYTES: Final = 1 << 20  # of one file
_COPIED_IN_ALL: Final = 64 << 20
_COPIED_FILES: Final = 2_000
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
# No user has folders there, or not at this depth.
_SYSTEMS: Final = frozenset((
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "lost+found", "nix", "proc", "root", "run", "sbin",
    "snap", "sys", "tmp", "usr", "var",
))  # fmt: skip
_MAX_LOOKS: Final = 500


class Inside(NamedTuple):
    """What is still to be put into the copy of a folder: full paths as the host has them."""

    folders: list[str]
    files: list[str]


class Skeletons:
    """Copies of folders, each in a folder of its own below `place`."""

    def __init__(self, place: str, *, keep_owners: bool) -> None:
        self._place = place
        self._keep_owners = keep_owners  # there are others than one's own
        self._count = self._files = self._bytes = 0

    def empty(self) -> str:
        own = f"{self._place}/{self._count}"
        self._count += 1
        os.mkdir(own, 0o755)
        return own

    def copy(
        self, folder: str, names: Collection[str], mode_of: Callable[[str], int], *, may_list: bool
    ) -> tuple[str, Inside]:
        """`names` are in it, should we not be allowed to list them. OSError."""
        if may_list:
            with suppress(PermissionError):
                names = os.listdir(folder)
        if may_list and len(names) > _MAX_ENTRIES:
            what = f"something is mounted, or kept, in a folder of more than {_MAX_ENTRIES:,} entries"
            raise OSError(errno.E2BIG, f"{what}; it cannot be copied", folder)
        own, inside = self.empty(), Inside([], [])
        for name in names:
            path = f"{folder.rstrip('/')}/{name}"
            try:
                self._add(path, f"{own}/{name}", inside, mode_of(path))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise
                # Gone meanwhile, or out of our reach: then it is not there.
        return own, inside

    def _add(self, path: str, target: str, inside: Inside, mode: int) -> None:
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(path), target)
        elif stat.S_ISDIR(mode):
            os.mkdir(target, 0o700)
            os.chmod(target, stat.S_IMODE(mode))
            inside.folders.append(path)
        elif stat.S_ISREG(mode) and not self._copy_file(path, target):
            inside.files.append(path)

    def _copy_file(self, path: str, target: str) -> bool:
        """False: an empty file is at the target, for the original to be bound over. What cannot be read is empty."""
        with using(os.open(target, _MAKE, 0o600)) as made:
            try:
                source = os.open(path, _READ)
            except OSError:
                os.fchmod(made, 0)
                return True
            with open(source, "rb", buffering=0) as file:
                found = os.fstat(source)
                if found.st_size > _COPIED_BYTES or not self._affords(found.st_size):
                    return False
                if os.write(made, file.read(_COPIED_BYTES)) < found.st_size:
                    return False
            if self._keep_owners:
                os.fchown(made, found.st_uid, found.st_gid)
            os.fchmod(made, stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(made, ns=(found.st_atime_ns, found.st_mtime_ns))
            return True

    def _affords(self, size: int) -> bool:
        self._files += 1
        self._bytes += size
        return self._files <= _COPIED_FILES and self._bytes <= _COPIED_IN_ALL


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
    without = {*silent, *MountTable().of_kind("autofs")}  # to look into one of these may wait for a mount
    third_level = (
        inner
        for top in _folders_in("/", without)
        if top[1:] not in _SYSTEMS
        for folder in _folders_in(top, without)
        for inner in _folders_in(folder, without)
    )
    uid = os.geteuid()
    return [path for path in islice(third_level, _MAX_LOOKS) if (found := look(path)) and found.st_uid == uid]


def _folders_in(folder: str, without: Collection[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{folder.rstrip('/')}/{entry.name}"
                if path not in without and entry.is_dir(follow_symlinks=False):
                    yield path
    except OSError:
        return  # closed to the user, or gone
