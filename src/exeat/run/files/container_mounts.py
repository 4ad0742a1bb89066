"""What a container has of the machine's files, as mounts that its engine makes: the folders, and what is held in them.

As in other jails, a mount makes a place read-only or covers it, and whatever is a mount point cannot be renamed or
removed. An engine mounts by path and nothing else. So each folder on the way to a place is mounted on itself: inside,
these are file systems of their own to those who move or link files across (EXDEV). And it cannot mount on a link: the
links among the places are left, to be held from within or put back at the end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from exeat.errors import ConfigError, JailError
from exeat.jail.container.options import Mount
from exeat.jail.files.holding import Holdings, Place
from exeat.jail.files.mounts import BLANK, PINS
from exeat.jail.files.mounttable import MountTable
from exeat.paths import is_in, is_inside, look, root_of, up_from


class Covers(NamedTuple):
    """Files of ours that are put over what is hidden: a file, and a folder that others can be made next to."""

    blank: str
    empty: str


def make_covers(folder: str) -> Covers:
    """In a folder of the run. Both can be read by no one, and in a container not be changed either."""
    covers = Covers(f"{folder}/blank", f"{folder}/empty")
    os.close(os.open(covers.blank, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0))
    os.mkdir(covers.empty, 0o555)
    return covers


class ContainerMounts:
    """`made` is for the engine, those that lie in others after them. `links` are places that it cannot hold."""

    def __init__(self, shares: Iterable[Mount], holdings: Holdings, sockets: Iterable[str], covers: Covers) -> None:
        """`shares` have sources without links; of `holdings`, places are in these. Raises ConfigError."""
        self._covers = covers
        self.shares = tuple(shares)
        self._made: dict[str, Mount] = {}
        self.links: list[Place] = []
        for share in self.shares:
            if share.target in self._made:
                raise ConfigError("two things cannot be at one place", where=f"--mount …:{share.target}")
            self._made[share.target] = share
        self._covered = [place.path for place in holdings.hidden]
        self._closed = {share.source: share.read_only for share in self.shares}
        self._hold_read_only(holdings)
        for path in sockets:
            if not is_in(path, self._covered):
                self._put(covers.blank, path)
        for place in (*holdings.read_only, *holdings.hidden, *holdings.pinned):
            self._pin(place, with_place=place in holdings.pinned)
        self._hide(holdings.hidden)
        self._put_own(covers.blank, BLANK)
        self._put_own(covers.empty, PINS)

    @property
    def made(self) -> tuple[Mount, ...]:
        return tuple(sorted(self._made.values(), key=lambda mount: mount.target.count("/")))

    @property
    def inside(self) -> dict[str, str]:
        """Where the shared folders are in the container, if that is another place."""
        return {share.source: share.target for share in self.shares if share.source != share.target}

    def targets(self, path: str) -> list[str]:
        """A path of the machine as the container has it: once for each share that it is in."""
        within = (share for share in self.shares if share.source == path or is_inside(path, share.source))
        return [share.target.rstrip("/") + path[len(share.source) :] for share in within]

    def _put(self, source: str, path: str, *, read_only: bool = True) -> None:
        """Over a path of the machine, wherever the container has it."""
        for target in self.targets(path):
            self._made[target] = Mount(source, target, read_only)

    def _put_own(self, source: str, target: str) -> None:
        self._made[target] = Mount(source, target, True)

    def _hold_read_only(self, holdings: Holdings) -> None:
        wanted = dict.fromkeys((place for place in holdings.read_only if self._can_be_held(place)), True)
        wanted |= dict.fromkeys((place for place in holdings.still_writable if self._can_be_held(place)), False)
        for place in sorted(wanted, key=lambda place: place.path.count("/")):  # what is in one comes after it
            if self._is_closed(place.path) != wanted[place]:
                if wanted[place]:
                    _refuse_mounts_in(place.path)
                self._put(place.path, place.path, read_only=wanted[place])
                self._closed[place.path] = wanted[place]

    def _hide(self, places: Iterable[Place]) -> None:
        for number, place in enumerate(places):
            found = look(place.path)
            if found is None or stat.S_ISLNK(found.st_mode):
                continue  # where a link leads is hidden itself
            if not stat.S_ISDIR(found.st_mode):
                self._put(self._covers.blank, place.path)
                continue
            kept = [name for name in place.keep if _is_file(f"{place.path}/{name}") and "/" not in name]
            cover = self._covers.empty
            if kept:
                cover = f"{cover}-{number}"
                os.mkdir(cover, 0o755)
                for name in kept:
                    os.close(os.open(f"{cover}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o400))
            self._put(cover, place.path)
            for name in kept:
                self._put(f"{place.path}/{name}", f"{place.path}/{name}")

    def _pin(self, place: Place, *, with_place: bool) -> None:
        """Every folder on the way, so that none can be renamed. In what is read-only none can."""
        root = root_of(place.path, (share.source for share in self.shares))
        for path in up_from(place.path, root) if root else ():
            is_meant = path != place.path or (with_place and self._can_be_held(place))
            if is_meant and os.path.isdir(path) and not self._is_closed(path) and not is_in(path, self._covered):
                for target in self.targets(path):
                    self._made.setdefault(target, Mount(path, target))

    def _can_be_held(self, place: Place) -> bool:
        found = look(place.path)
        if found is not None and stat.S_ISLNK(found.st_mode):
            self.links.append(place)
            return False
        is_share = place.path in (share.source for share in self.shares)
        return found is not None and not is_share and not (is_in(place.path, self._covered))

    def _is_closed(self, path: str) -> bool:
        """Is it read-only with what it is in?"""
        return self._closed.get(root_of(path, self._closed), False)


def _is_file(path: str) -> bool:
    found = look(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def _refuse_mounts_in(path: str) -> None:
    """An engine makes the one mount read-only, not those in it."""
    if os.path.isdir(path) and (points := MountTable().points_below(path)):
        raise JailError(
            f"{points[0]} is a mount in what must be read-only in the container, and would not be",
            detail=path,
            fix=f"umount {points[0]}, or run without --container",
        )
