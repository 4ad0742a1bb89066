"""The machine's files in a container, as mounts for its engine: shared folders, and protected files in them.

As in other jails, a mount makes a place read-only or covers it, and whatever is a mount point cannot be renamed or
removed. An engine mounts by path and nothing else. So each folder on the way to a place is mounted on itself: inside,
these are file systems of their own to those who move or link files across (EXDEV). And it cannot mount on a link: the
links among the places are left, to be held from within or put back at the end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
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
        """`shares` have sources without links; of `holdings`, places are in these. Raises ConfigError or JailError."""
        self._shares = tuple(shares)
        self._made: dict[str, Mount] = {}
        for share in self._shares:
            if share.target in self._made:
                raise ConfigError("two mounts cannot have the same target", where=f"--mount …:{share.target}")
            if share.read_only:
                _refuse_mounts_in(share.source)
            self._made[share.target] = share
        self.links = [place for place in dict.fromkeys((*holdings.read_only, *holdings.pinned)) if _is_link(place.path)]
        hidden = {place: _cover(place, covers, number) for number, place in enumerate(holdings.hidden)}
        shared = dict(self._made)
        for share in self._shares:
            held = _InShare(share, holdings).hold(sockets, hidden, covers, self._others_in(share))
            # What another lies over is that one's to hold.
            self._made |= {target: each for target, each in held.items() if root_of(target, shared) == share.target}
        self._made |= shared
        self._made[BLANK] = Mount(covers.blank, BLANK, True)
        self._made[PINS] = Mount(covers.empty, PINS, True)

    def _others_in(self, share: Mount) -> list[Place]:
        """Where other shares lie in this one: the way there is to stay."""
        inner = (other.target for other in self._shares if is_inside(other.target, share.target))
        return [Place(share.source, share.source + target[len(share.target) :]) for target in inner]

    @property
    def made(self) -> tuple[Mount, ...]:
        return tuple(sorted(self._made.values(), key=lambda mount: mount.target.count("/")))

    @property
    def inside(self) -> list[dict[str, str]]:
        """Where the shared folders are in the container: as often as the one that is there most often."""
        targets: dict[str, list[str]] = {}
        for share in self._shares:
            targets.setdefault(share.source, []).append(share.target)
        most = max(map(len, targets.values()), default=0)
        return [
            {source: found[min(number, len(found) - 1)] for source, found in targets.items()} for number in range(most)
        ]


class _Covering(NamedTuple):
    """What is put over a hidden place, and the names of files in it that stay."""

    cover: str
    kept: tuple[str, ...] = ()


def _cover(place: Place, covers: Covers, number: int) -> _Covering | None:
    found = look(place.path)
    if found is None or stat.S_ISLNK(found.st_mode):
        return None  # where a link leads is hidden itself
    if not stat.S_ISDIR(found.st_mode):
        return _Covering(covers.blank)
    kept = tuple(name for name in place.keep if _is_file(f"{place.path}/{name}") and "/" not in name)
    if not kept:
        return _Covering(covers.empty)
    cover = f"{covers.empty}-{number}"
    os.mkdir(cover, 0o755)
    for name in kept:
        os.close(os.open(f"{cover}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o400))
    return _Covering(cover, kept)


class _InShare:
    """What is held in one folder that is shared, as paths of the machine. What it is in may be shared as well."""

    def __init__(self, share: Mount, holdings: Holdings) -> None:
        self._share = share
        self._holdings = holdings
        self._covered = [place.path for place in holdings.hidden]
        self._read_only = {share.source: share.read_only}  # or writable again
        self._made: dict[str, Mount] = {}

    def hold(
        self,
        sockets: Iterable[str],
        hidden: Mapping[Place, _Covering | None],
        covers: Covers,
        others: Iterable[Place],
    ) -> dict[str, Mount]:
        self._hold_read_only()
        held = self._holdings
        for path in sockets:
            if self._is_here(path):
                self._put(covers.blank, path)
        for place in (*held.read_only, *held.hidden, *held.pinned, *others):
            self._pin(place, with_place=place in held.pinned)
        for place, covering in hidden.items():
            if covering is not None and is_inside(place.path, self._share.source):
                self._put(covering.cover, place.path)
                for name in covering.kept:
                    self._put(f"{place.path}/{name}", f"{place.path}/{name}")
        return self._made

    def _put(self, source: str, path: str, *, read_only: bool = True) -> None:
        target = self._share.target.rstrip("/") + path[len(self._share.source) :]
        self._made[target] = Mount(source, target, read_only)

    def _is_here(self, path: str) -> bool:
        """In this folder, and not covered with what it is in."""
        return is_inside(path, self._share.source) and not is_in(path, self._covered)

    def _is_read_only(self, path: str) -> bool:
        """With what it is in."""
        return self._read_only.get(root_of(path, self._read_only), False)

    def _hold_read_only(self) -> None:
        wanted = {place.path: True for place in self._holdings.read_only}
        wanted |= {place.path: False for place in self._holdings.still_writable}
        for path in sorted(wanted, key=lambda path: path.count("/")):  # what is in one comes after it
            if not self._is_here(path) or not os.path.lexists(path) or _is_link(path):
                continue
            if self._is_read_only(path) != wanted[path] and not self._share.read_only:
                if wanted[path]:
                    _refuse_mounts_in(path)
                self._put(path, path, read_only=wanted[path])
                self._read_only[path] = wanted[path]

    def _pin(self, place: Place, *, with_place: bool) -> None:
        """Every folder on the way, so that none can be renamed. In what is read-only none can."""
        if not is_inside(place.path, self._share.source):
            return
        for path in up_from(place.path, self._share.source):
            is_meant = (path != place.path or with_place) and os.path.isdir(path) and not os.path.islink(path)
            is_held = path in self._read_only or self._is_read_only(path)
            if is_meant and not is_held and self._is_here(path):
                self._put(path, path, read_only=False)


def _is_link(path: str) -> bool:
    found = look(path)
    return found is not None and stat.S_ISLNK(found.st_mode)


def _is_file(path: str) -> bool:
    found = look(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def _refuse_mounts_in(path: str) -> None:
    """An engine makes the one mount read-only, not those in it."""
    if os.path.isdir(path) and (points := MountTable().points_below(path)):
        raise JailError(
            f"{points[0]} is a mount inside a folder that must be read-only in the container, and would stay writable",
            detail=path,
            fix=f"umount {points[0]}, or run without --container",
        )
