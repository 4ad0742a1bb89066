"""Keeps the command from changing or reading places in folders that are shared for real. For the builder.

A mount on a file or folder makes it read-only, or covers it. It does not hold what leads there: a folder that only
contains a mount can be renamed, and then another can be made in its place. So every part of the way is pinned: the
kernel refuses to rename or remove (EBUSY) whatever is a mount point in the caller's namespace, at whatever place. The
mounts that make a folder one lie in a heap, at a place of their own under a blank. So the way itself stays one file
system for those who move or link files along it, which a mount on it would make two (EXDEV).

The folder that is shared is a mount itself, and the way begins below it. No link is followed: a place that is a link
is pinned, and where it leads is another place. Everything here raises OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from exeat.jail.files.kernelfs import read_only, read_only_below
from exeat.jail.files.trees import HANDLE
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, call, mount
from exeat.jail.limits.late_code import in_a_fork, load_no_more_code
from exeat.jail.limits.privileges import hide_memory
from exeat.paths import is_inside, links_on_way

_BARE = MS_NOSUID | MS_NODEV | MS_NOEXEC


class Place(NamedTuple):
    """A path without links, and the shared folder that it is in: full paths as the command has them."""

    root: str
    path: str
    keep: tuple[str, ...] = ()  # names of files in it that are seen, if it is hidden


class Reach(NamedTuple):
    """How a process gets at what it has open, and at shared folders: by their paths unless it has them open as well."""

    descriptors: str = "/proc/self/fd"
    roots: Mapping[str, int] = MappingProxyType({})


_BY_PATH: Final = Reach()


class Holdings(NamedTuple):
    """What is held in all shared folders."""

    read_only: tuple[Place, ...] = ()  # files and folders that can be read, and not written
    still_writable: tuple[Place, ...] = ()  # in these
    hidden: tuple[Place, ...] = ()  # files that are seen empty, and folders
    pinned: tuple[Place, ...] = ()  # folders that cannot be renamed or removed, and no more
    absent: tuple[str, ...] = ()  # in these or in roots: paths where nothing is to come. No mount can hold that
    fatal: tuple[str, ...] = ()  # the same, and a reason to end the run
    projects: tuple[str, ...] = ()  # shared folders that people work in
    followed: tuple[str, ...] = ()  # names of hidden files with links on the way, wherever these lead later
    lasting: tuple[str, ...] = ()  # hidden folders without which the run must end
    second_names: tuple[Place, ...] = ()  # of those that are read-only: what can be changed by another name

    def hold(self, heap: str, blank: str, reach: Reach = _BY_PATH) -> None:
        """`heap` is an empty folder, which goes out of the command's reach. It can be used again. `blank` is a file."""
        hold_read_only(self.read_only, heap, self.still_writable, reach)
        hold_hidden(self.hidden, heap, blank, reach)
        _pin(_ways_to(self.pinned, reach), heap, with_places=True)

    def that_are_open(self, reach: Reach = _BY_PATH) -> Holdings:
        """Those where something is that is not held."""
        read_only = tuple(place for place in self.read_only if _is_open(place, reach))
        writable = (each for each in self.still_writable if _is_in_one_of(each, read_only))
        hidden = tuple(place for place in self.hidden if _is_open(place, reach, hides=True))
        return Holdings(read_only, tuple(place for place in writable if _is_open(place, reach)), hidden)


def hold_read_only(
    places: Iterable[Place], heap: str, still_writable: Iterable[Place] = (), reach: Reach = _BY_PATH
) -> None:
    """Let these be read, and not written; but for places in them, and again in those."""
    places, excepted = list(places), list(still_writable)
    inner = [place for place in places if _is_in_one_of(place, places)]  # read-only with what they are in
    ways = _ways_to((place for place in places if place not in inner), reach)
    writable = _ways_to(excepted, reach)
    for way in ways:
        if not way.is_link:
            with suppress(FileNotFoundError):  # gone, as in `_ways_to`
                mount(way.place, way.place, None, MS_BIND | MS_REC)
                read_only_below(way.what_is_seen())
    for way in writable:
        with suppress(FileNotFoundError):
            mount(way.place, way.what_is_seen(), None, MS_BIND | MS_REC)
    _pin([*ways, *writable], heap)
    again = [place for place in inner if _is_in_one_of(place, excepted)]
    if again:
        hold_read_only(again, heap, reach=reach)


def _is_in_one_of(place: Place, others: Iterable[Place]) -> bool:
    return any(is_inside(place.path, other.path) for other in others)


def hold_hidden(places: Iterable[Place], heap: str, blank: str, reach: Reach = _BY_PATH) -> None:
    """Let files be seen as `blank`, and folders empty but for what is kept of them."""
    ways = _ways_to(places, reach)
    for way in ways:
        with suppress(FileNotFoundError):
            if way.is_folder:
                _empty(way, way.keep)
            elif not way.is_link:
                mount(blank, way.place, None, MS_BIND)
                read_only(way.what_is_seen())
    _pin(ways, heap)


def places_on_way(root: str, path: str) -> list[Place]:
    """All that must be held for a path to lead where it leads now: every link on the way, and the place itself."""
    real = [os.path.realpath(path)] if os.path.exists(path) else []
    return [Place(root, each) for each in (*links_on_way(path), *real) if is_inside(each, root)]


class _Way:
    """The parts of the way to a place, and the place itself, as they are now."""

    def __init__(self, place: Place, reach: Reach) -> None:
        inside = os.path.relpath(place.path, place.root)
        self._names = inside.split("/") if inside != "." else []
        if self._names[:1] == [".."]:
            raise OSError(errno.EINVAL, f"{place.path} is not in {place.root}")
        self.keep = place.keep
        self._root = place.root
        self._reach = reach
        self._others: list[int] = []
        known = reach.roots.get(place.root)
        self._opened = [os.open(place.root, HANDLE) if known is None else os.dup(known)]
        try:
            for name in self._names:
                self._opened.append(os.open(name, HANDLE, dir_fd=self._opened[-1]))
        except BaseException:
            self.close()
            raise
        mode = os.fstat(self._opened[-1]).st_mode
        self.is_folder, self.is_link = stat.S_ISDIR(mode), stat.S_ISLNK(mode)

    @property
    def place(self) -> str:
        """Without what has been mounted on it since. What is mounted there now is put on top of that."""
        return self.path_of(self._opened[-1])

    def open_here(self, name: str) -> int:
        """A file in the place, without what has been mounted on it since."""
        self._others.append(os.open(name, HANDLE, dir_fd=self._opened[-1]))
        return self._others[-1]

    def what_is_seen(self) -> str:
        """The place with what is mounted there now, on it or on the way."""
        here = os.dup(self._opened[0]) if self._names else os.open(self._root, HANDLE)
        self._others.append(here)
        for name in self._names:
            here = os.open(name, HANDLE, dir_fd=here)
            self._others.append(here)
        return self.path_of(here)

    def is_in_read_only(self) -> bool:
        return len(self._opened) > 1 and bool(os.statvfs(self.path_of(self._opened[-2])).f_flag & os.ST_RDONLY)

    def path_of(self, descriptor: int) -> str:
        return f"{self._reach.descriptors}/{descriptor}"

    def to_pin(self, *, with_place: bool) -> list[int]:
        """What could be renamed or removed: the folders below the root, and a link. Other places are mounts by now."""
        return self._opened[1:] if self.is_link or with_place else self._opened[1:-1]

    def close(self) -> None:
        for descriptor in (*self._opened, *self._others):
            os.close(descriptor)
        self._opened.clear()
        self._others.clear()


def _ways_to(places: Iterable[Place], reach: Reach) -> list[_Way]:
    """Others work in a shared folder too, and may remove a place after it was found. Then there is nothing to hold.

    If it comes back, `hold_again` sees that it is open.
    """
    ways = []
    for place in places:
        with suppress(FileNotFoundError):
            ways.append(_Way(place, reach))
    return ways


def _is_open(place: Place, reach: Reach, *, hides: bool = False) -> bool:
    """Is something there that can be changed? What is held lies on a read-only mount; of links it is not known.

    `hides`: or that can be seen. In a folder that is read-only itself that is not known either.
    """
    try:
        way = _Way(place, reach)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with closing(way):
        if way.is_link or (hides and way.is_in_read_only()):
            return True
        return not os.statvfs(way.what_is_seen()).f_flag & os.ST_RDONLY


def _empty(way: _Way, keep: Iterable[str]) -> None:
    kept = []
    for name in keep:
        try:
            descriptor = way.open_here(name)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            kept.append((name, descriptor))
    mount("exeat", way.place, "tmpfs", _BARE, "mode=555,size=64k")
    folder = way.what_is_seen()
    for name, descriptor in kept:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o400))
        mount(way.path_of(descriptor), f"{folder}/{name}", None, MS_BIND)
    read_only_below(folder)


def _pin(ways: list[_Way], heap: str, *, with_places: bool = False) -> None:
    seen: set[tuple[int, int]] = set()
    for way in ways:
        for descriptor in way.to_pin(with_place=with_places):
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            source = way.path_of(descriptor)
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(found.st_mode):
                    _heap_up(source, heap)
                else:
                    mount(source, source, None, MS_BIND)  # on itself; a link is followed as before
        way.close()
    if seen:
        # Lies on the last of them as each lies on the one before.
        mount("exeat", heap, "tmpfs", _BARE | MS_RDONLY, "mode=000,size=4k")


def _heap_up(source: str, heap: str) -> None:
    try:
        mount(source, heap, None, MS_BIND)
    except OSError as error:
        # In a user namespace a folder with mounts in it goes with them only: they may be there to hide something.
        if error.errno != errno.EINVAL:
            raise
        mount(source, heap, None, MS_BIND | MS_REC)


def hold_again(
    holdings: Holdings,
    roots: Mapping[str, os.stat_result],
    namespaces: Sequence[int],
    heap: str,
    blank: str,
    inside: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Hold what is not held, in the jail of these namespaces: of users, if it has one, and of mounts.

    A mount goes with its file: when an editor, or git, puts a new one in its place, that is neither hidden nor
    read-only.

    `roots` are the shared folders as they are outside: the command can put another folder before its own, and that
    must not be taken for it. `heap` and `blank` are as for the builder. `inside`: roots that have another path there.
    Returns what went wrong.
    """
    if not namespaces:
        return "there is no way into the jail's mounts"

    def hold() -> None:
        descriptors = os.open("/proc/self/fd", os.O_PATH | os.O_CLOEXEC)  # in the jail's /proc we are not
        load_no_more_code()
        for namespace in namespaces:
            call("setns", namespace, 0)
        os.fchdir(descriptors)
        hide_memory()  # what it can do is more than others of our user may
        _hold_in_jail(holdings, roots, heap, blank, inside)

    return in_a_fork(hold)


def _hold_in_jail(
    holdings: Holdings, roots: Mapping[str, os.stat_result], heap: str, blank: str, inside: Mapping[str, str]
) -> None:
    opened = {}
    for root, known in roots.items():
        opened[root] = os.open(inside.get(root, root), HANDLE)
        if not os.path.samestat(os.fstat(opened[root]), known):
            raise OSError(f"{root} is no longer at its place in the jail")
    reach = Reach(".", opened)
    holdings.that_are_open(reach).hold(heap, blank, reach)
