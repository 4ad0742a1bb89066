"""Folders that a command must not read, write, replace or make again, by any path; and some that it may read.

A mount over a folder hides it, or shows it read-only. It does not hold what leads there: a folder that only contains
a mount can be renamed, and then another can be made in its place. So everything on the way that the command could
rename or remove is pinned: the kernel refuses that (EBUSY) for whatever is a mount point in the caller's namespace,
at whatever place. The mounts that make it one lie in a heap, at a place of their own under a blank. So the way itself
stays one file system for those who move or link files along it, which a mount on it would make two (EXDEV).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from exeat.jail.kernelfs import read_only_below
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, mount
from exeat.jail.mounttable import MountTable
from exeat.jail.way import steps

_BARE = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY
_MAX_LAYERS = 8

Identity = tuple[int, int]  # device and inode


class HeldPlaces:
    """All ways to some places, found before anything is covered. Everything here raises OSError.

    The ways to `files` are held as well, and those to `obstacles` as far as there are any.
    """

    def __init__(
        self, places: Iterable[str], table: MountTable, obstacles: Iterable[str] = (), files: Iterable[str] = ()
    ) -> None:
        self._ways: dict[str, Identity] = {}
        held: dict[str, None] = {}  # in order, and each once
        for place in places:
            self._find(os.path.realpath(place), table, _MAX_LAYERS)
            held |= dict.fromkeys(_parts_of_way(place))
        for path in obstacles:
            held |= dict.fromkeys(_parts_of_way(f"{path}/-"))  # as far as there are any, and the last of them too
        for path in files:
            named = [os.path.abspath(path)] if not path.startswith(("/dev/", "/proc/")) else []  # an open file's
            for way in (*named, *table.every_path(os.path.realpath(path))):
                held |= dict.fromkeys(_parts_of_way(way))
        for way in self._ways:
            if way == "/":
                raise OSError(errno.EINVAL, "exeat's own folder is all there is; give it one with EXEAT_HOME")
            held |= dict.fromkeys(_parts_of_way(way))
        # By descriptor: /run, which may be on the way, is covered before there is a place for the heap.
        self._held = [os.open(each, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) for each in held]

    def _find(self, folder: str, table: MountTable, layers: int) -> None:
        own = _identity(folder)
        for way in table.other_paths(folder):
            self._add(way, own)
        for way, part in table.parts_elsewhere(folder):
            self._add(way, _identity(part))
        for beneath in table.beneath(folder):  # what an overlay shows has another inode there
            if layers and os.path.exists(beneath):
                self._find(os.path.realpath(beneath), table, layers - 1)
        for point in table.points_below(folder):  # what is mounted into it lies somewhere else as well
            if layers and os.path.isdir(point):
                self._find(point, table, layers - 1)

    def _add(self, way: str, target: Identity) -> None:
        """A path that the table has found, unless another mount hides it."""
        try:
            if _identity(way) == target:
                self._ways[way] = target
        except OSError as error:
            # Nothing is there, or nothing that can be reached. By a path that is too long it can, step by step.
            if error.errno == errno.ENAMETOOLONG:
                raise

    def cover(self) -> None:
        """Change what is seen of the places. To be called first: they are to be what they were when they were found."""
        covered: list[str] = []
        for way, target in self._ways.items():
            if any(way.startswith(f"{each}/") for each in covered):
                continue  # done with the folder that it is in
            found = os.stat(way)
            if (found.st_dev, found.st_ino) != target:
                raise OSError(errno.EAGAIN, f"{way} was replaced while the jail was being built; try again")
            self._cover(way, is_folder=stat.S_ISDIR(found.st_mode))
            covered.append(way)

    def _cover(self, way: str, *, is_folder: bool) -> None:
        raise NotImplementedError

    def pin(self, heap: str) -> None:
        """Make every part of the ways a mount point. `heap` is an empty folder, which becomes out of reach."""
        for descriptor in self._held:
            source = f"/proc/self/fd/{descriptor}"
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                mount(source, source, None, MS_BIND)  # on itself; a link is followed as before
            else:
                _heap_up(source, heap)
            os.close(descriptor)
        self._held.clear()
        # Lies on the last of them as each lies on the one before.
        mount("exeat", heap, "tmpfs", _BARE, "mode=000,size=4k")


class HiddenFolders(HeldPlaces):
    """Of which nothing is seen."""

    def _cover(self, way: str, *, is_folder: bool) -> None:
        if is_folder:
            mount("exeat", way, "tmpfs", _BARE, "mode=500,size=4k")
        else:
            mount(os.devnull, way, None, MS_BIND)


class ReadOnlyPlaces(HeldPlaces):
    """Folders and files that can be read, and not written."""

    def _cover(self, way: str, *, is_folder: bool) -> None:
        mount(way, way, None, MS_BIND | MS_REC)
        read_only_below(way)


def _heap_up(source: str, heap: str) -> None:
    try:
        mount(source, heap, None, MS_BIND)
    except OSError as error:
        # In a user namespace a folder with mounts in it goes with them only: they may be there to hide something.
        if error.errno != errno.EINVAL:
            raise
        mount(source, heap, None, MS_BIND | MS_REC)


def _parts_of_way(path: str) -> list[str]:
    """Every folder and link on the way to a folder that the command could rename or remove; not the folder itself."""
    found = []
    for step in steps(path):
        if step.fault is not None:
            if step.fault.errno == errno.ELOOP:
                raise step.fault
            break  # as far as there is one
        if (step.is_link or not step.is_last) and _can_be_changed(step.folder):
            found.append(step.here)
    return found


def _can_be_changed(folder: str) -> bool:
    """May somebody with our rights rename and remove what is in it, perhaps after a chmod?"""
    return os.access(folder, os.W_OK) or os.stat(folder).st_uid == os.geteuid()


def _identity(path: str) -> Identity:
    found = os.stat(path)
    return found.st_dev, found.st_ino
