"""The mask: a tree that lies over the real files in every layered view, and in which hidden paths are whiteouts.

Called in the process that builds the jail, in its new mount namespace, before anything is layered. The tree mirrors
full paths, so a layer over /home takes the mask's `home`. Nothing is read through a link: what stays of a hidden folder
could be turned to a hidden file otherwise.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from exeat.errors import JailError
from exeat.files.keys.hidden import HiddenPath
from exeat.jail.files.trees import make_whiteout, open_without_links
from exeat.paths import DIRECTORY, name_matches, opened, up_from, using

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_OF_THE_JAIL = ("/proc/", "/sys/", "/dev/", "/run/")  # nothing of the machine's is there, and so nothing to hide
_MOST_FILES = 2000
_MOST_BYTES = 32 << 20


def build_mask(mask: int, hidden: Iterable[HiddenPath], *, opaque_xattr: str) -> list[str]:
    """Fill an empty folder, a descriptor of which is given. `opaque_xattr`: the mark that the layers will look for.

    Without one, returns the folders of which only what is in the mask must show: the caller has to see to it. OSError
    if it cannot be made whole, JailError if too much is to be kept: then nothing may start.
    """
    entries = sorted(hidden)
    paths = frozenset(entry.path for entry in entries)
    tree = _Tree(mask)
    unmarked = []
    try:
        for entry in entries:
            if entry.path.startswith(_OF_THE_JAIL) or not paths.isdisjoint(up_from(os.path.dirname(entry.path))):
                continue
            folder, _, name = entry.path.rpartition("/")
            within = tree.folder(folder)
            if not entry.keep or not os.path.isdir(entry.path):  # of a folder one file may be mounted elsewhere
                make_whiteout(name, within)
                continue
            kept = tree.folder(entry.path)
            if opaque_xattr:
                os.setxattr(kept, opaque_xattr, b"y")
            else:
                unmarked.append(entry.path)
            _keep(entry, kept, paths)
        tree.finish()
    finally:
        tree.close()
    return unmarked


class _Tree:
    """Folders of the mask, each made when it is first needed. At the end they get what the real ones have."""

    def __init__(self, mask: int) -> None:
        self._made: dict[str, int] = {"": mask}
        self._real: dict[str, os.stat_result] = {}

    def folder(self, path: str) -> int:
        """The mask's own folder for this one."""
        if path in self._made:
            return self._made[path]
        above, _, name = path.rpartition("/")
        within = self.folder(above)
        real = os.lstat(path)
        if not stat.S_ISDIR(real.st_mode):
            raise NotADirectoryError(f"{path} is no longer a folder")
        self._real[path] = real
        os.mkdir(name, 0o700, dir_fd=within)
        self._made[path] = os.open(name, DIRECTORY, dir_fd=within)
        return self._made[path]

    def finish(self) -> None:
        """Mode, owner and times of a merged folder are those of its uppermost layer. Innermost first."""
        for path in reversed(self._real):
            _make_alike(self._made[path], self._real[path], path)

    def close(self) -> None:
        for path in self._real:
            if path in self._made:
                os.close(self._made[path])


def _make_alike(descriptor: int, real: os.stat_result, path: str = "") -> None:
    mode = stat.S_IMODE(real.st_mode) & ~(stat.S_ISUID if path else stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (real.st_uid, real.st_gid):
        try:
            os.fchown(descriptor, real.st_uid, real.st_gid)
        except OSError:
            # An owner who has no number in our user namespace. The folder is ours now, with the rights that we had.
            if path and own.st_uid != real.st_uid:
                mode = mode & ~stat.S_IRWXU | sum(
                    bit << 6 for bit in (os.R_OK, os.W_OK, os.X_OK) if os.access(path, bit)
                )
    os.fchmod(descriptor, mode)
    os.utime(descriptor, ns=(real.st_atime_ns, real.st_mtime_ns))


def _keep(entry: HiddenPath, kept: int, hidden: frozenset[str]) -> None:
    """Copies of what stays of a folder."""
    copies = _Copies(hidden)
    with using(open_without_links(entry.path, DIRECTORY)) as source:
        for each in entry.keep:
            copies.add(source, kept, entry.path, each.split("/"))


class _Copies:
    """Copies files, links as links and folders with all that is in them, up to a bound. Nothing that is hidden."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden
        self._files = 0
        self._bytes = 0

    def add(self, source: int, target: int, path: str, names: list[str]) -> None:
        """What a path of names means in a folder, with the folders on the way. What is not there is left out."""
        pattern, *rest = names
        found = [name for name in os.listdir(source) if name_matches(name, pattern)] if "*" in pattern else [pattern]
        for name in found:
            here = f"{path}/{name}"
            if here in self._hidden:
                continue
            with suppress(FileNotFoundError, PermissionError):  # the command could not have read it either
                self._add_one(source, target, here, name, rest)

    def _add_one(self, source: int, target: int, here: str, name: str, rest: list[str]) -> None:
        real = os.lstat(name, dir_fd=source)
        if stat.S_ISDIR(real.st_mode):
            self._add_folder(source, target, here, name, rest or ["*"])
        elif rest:
            pass
        elif stat.S_ISLNK(real.st_mode):
            self._count(here, 0)
            with suppress(FileExistsError):  # two patterns may mean it
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(real.st_mode):
            self._add_file(source, target, here, name)

    def _add_folder(self, source: int, target: int, here: str, name: str, rest: list[str]) -> None:
        self._count(here, 0)
        with opened(name, within=source) as inner:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=target)
            with opened(name, within=target) as copy:
                self.add(inner, copy, here, rest)
                _make_alike(copy, os.fstat(inner), here)

    def _add_file(self, source: int, target: int, here: str, name: str) -> None:
        with open(os.open(name, _READ, dir_fd=source), "rb") as file:
            real = os.fstat(file.fileno())
            if not stat.S_ISREG(real.st_mode):
                return
            content = file.read(_MOST_BYTES - self._bytes + 1)
            self._count(here, len(content))
        with suppress(FileExistsError), open(os.open(name, _MAKE, 0o600, dir_fd=target), "wb") as copy:
            copy.write(content)
            copy.flush()
            _make_alike(copy.fileno(), real)

    def _count(self, here: str, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > _MOST_FILES or self._bytes > _MOST_BYTES:
            raise JailError(
                "too much of a hidden folder would be shown",
                detail=f"each is copied, at most {_MOST_FILES} files and {_MOST_BYTES >> 20} MB; {here} is beyond that",
                fix="--show the whole folder, or fewer files of it",
            )
