"""The layers of a sandbox, read as one with the newest on top, and what they would change on this machine.

The machine is reached step by step: no part of a way is a link, even if a program turns one into one meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final, Literal, NamedTuple, Self

from exeat.files.layers.kept import kept_facts, kept_layers
from exeat.jail.files.trees import is_whiteout, opaque_mark, open_in
from exeat.paths import is_below, is_in, look, opened, using
from exeat.sandbox.folder import SandboxFolder

Kind = Literal["added", "changed", "removed"]

HIDDEN: Final = "hidden from the command, so not compared"
HOLDS_HIDDEN: Final = "holds what was hidden from the command"
NEWER: Final = "changed outside since then"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_COUNTED: Final = 10_000
_MAX_LEVELS: Final = 50
EntryKind = Literal["file", "link", "folder", "removed"]


class Entry(NamedTuple):
    """A path that a layer has something to say about. `tree` is the newest layer that does."""

    path: str
    kind: EntryKind
    tree: int
    found: os.stat_result
    # Of folders:
    hides_below: bool = False  # nothing of what the machine has there shows
    names: frozenset[str] = frozenset()  # that show in it, or are removed
    mark: str = ""  # with which it says that it hides

    def open(self) -> int:
        """A descriptor for reading a file or folder."""
        return os.open(self.path[1:], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.tree)

    def link(self) -> str:
        """Where a link leads."""
        return os.readlink(self.path[1:], dir_fd=self.tree)


class _Pending(NamedTuple):
    path: str
    trees: list[int]  # that have this folder, newest first
    found: os.stat_result
    hides_below: bool


def walk_layers(trees: Sequence[int]) -> Iterator[Entry]:
    """Everything in the layers (newest first), each folder before what is in it. The root itself is not told."""
    if not trees:
        return
    pending = [_Pending("", list(trees), os.fstat(trees[0]), hides_below=False)]
    while pending:
        folder = pending.pop()
        listed, mark = _list(folder)
        hides = folder.hides_below or bool(mark)  # and so do all folders in it
        if folder.path:
            names = frozenset(listed)
            yield Entry(folder.path, "folder", folder.trees[0], folder.found, hides, names, mark)
        inner = []
        for name, having in sorted(listed.items()):
            path = f"{folder.path}/{name}"
            tree, found = having[0]
            if stat.S_ISDIR(found.st_mode):
                same = _first_folders(having)
                inner.append(_Pending(path, same, found, hides_below=hides or len(same) < len(having)))
            else:
                yield Entry(path, _kind(found), tree, found)
        pending += reversed(inner)


def _list(folder: _Pending) -> tuple[dict[str, list[tuple[int, os.stat_result]]], str]:
    """Names in a folder, each with the layers that have it; down to the layer whose folder hides those below it."""
    listed: dict[str, list[tuple[int, os.stat_result]]] = {}
    for tree in folder.trees:
        with opened(folder.path[1:] or ".", within=tree) as descriptor, os.scandir(descriptor) as entries:
            mark = opaque_mark(descriptor)
            for entry in entries:
                listed.setdefault(entry.name, []).append((tree, entry.stat(follow_symlinks=False)))
        if mark:
            return listed, mark
    return listed, ""


def _first_folders(having: list[tuple[int, os.stat_result]]) -> list[int]:
    """The layers in which it is a folder, down to one in which it is something else."""
    return [tree for tree, _ in takewhile(lambda each: stat.S_ISDIR(each[1].st_mode), having)]


def _kind(found: os.stat_result) -> EntryKind:
    if is_whiteout(found):
        return "removed"
    return "link" if stat.S_ISLNK(found.st_mode) else "file"


class Change(NamedTuple):
    """One path. `before` is what the machine has, `entry` what the layers have; None is nothing."""

    path: str
    kind: Kind
    what: Literal["file", "link", "folder"]
    entry: Entry | None
    before: os.stat_result | None
    note: str = ""

    @property
    def is_hidden(self) -> bool:
        return self.note in (HIDDEN, HOLDS_HIDDEN)

    @property
    def size(self) -> int:
        """In the layer."""
        return self.entry.found.st_size if self.entry is not None and self.what == "file" else 0

    @property
    def size_before(self) -> int:
        return self.before.st_size if self.before is not None and stat.S_ISREG(self.before.st_mode) else 0


class Comparison:
    """The layers of a sandbox, held for as long as this is open, against the machine as it is now."""

    def __init__(self, folder: SandboxFolder) -> None:
        facts = kept_facts(folder)
        self._trees = kept_layers(folder)
        self._began_ns = min((each.began_ns for each in facts), default=0)
        self._hidden = sorted({path for each in facts for path in each.hidden})
        self.real = RealMachine()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *exception: object) -> None:
        self.real.forget()
        for tree in self._trees:
            os.close(tree)

    def changes(self, paths: Sequence[str] = ()) -> list[Change]:
        """At these paths and below them, or everywhere; sorted by path."""
        found = (change for entry in walk_layers(self._trees) for change in self._compare(entry))
        chosen = [change for change in found if not paths or is_in(change.path, paths)]
        return sorted(chosen, key=lambda change: change.path.split("/"))

    def _compare(self, entry: Entry) -> Iterator[Change]:
        path = entry.path
        if is_in(path, self._hidden):
            if entry.kind in ("file", "link"):
                yield Change(path, "added", _what(entry), entry, None, HIDDEN)
            return
        before = self.real.look(path)
        note = NEWER if before is not None and before.st_ctime_ns > self._began_ns else ""
        if entry.kind == "removed":
            if before is not None:
                yield self._removal(path, before, note)
        elif before is None:
            yield Change(path, "added", _what(entry), entry, None)
        elif entry.kind == "folder":
            yield from self._compare_folder(entry, before, note)
        elif not self._is_same(entry, before):
            yield Change(path, "changed", _what(entry), entry, before, note)

    def _compare_folder(self, entry: Entry, before: os.stat_result, note: str) -> Iterator[Change]:
        if not stat.S_ISDIR(before.st_mode):
            yield Change(entry.path, "changed", "folder", entry, before, note)
        elif entry.hides_below:
            for name in self.real.names(entry.path):
                path = f"{entry.path}/{name}"
                inner = None if name in entry.names else self.real.look(path)
                # What has come since then, the command never saw. It is not there inside, but nothing removed it.
                if inner is not None and inner.st_ctime_ns <= self._began_ns and not is_in(path, self._hidden):
                    yield self._removal(path, inner, "")

    def _removal(self, path: str, before: os.stat_result, note: str) -> Change:
        is_folder = stat.S_ISDIR(before.st_mode)
        if is_folder and any(is_below(each, path) for each in self._hidden):
            note = HOLDS_HIDDEN
        return Change(path, "removed", "folder" if is_folder else "file", None, before, note)

    def _is_same(self, entry: Entry, before: os.stat_result) -> bool:
        """A file that was opened for writing is in the layer, changed or not."""
        found = entry.found
        if stat.S_IFMT(found.st_mode) != stat.S_IFMT(before.st_mode):
            return False
        if entry.kind == "link":
            return entry.link() == self.real.link(entry.path)
        if found.st_size != before.st_size or (found.st_mode ^ (before.st_mode | 0o400)) & 0o777:
            return False
        try:
            there = self.real.open(entry.path)
        except OSError:
            return False
        with using(there), using(entry.open()) as here:
            return is_same_content(here, there)


def _what(entry: Entry) -> Literal["file", "link", "folder"]:
    return "link" if entry.kind == "link" else "folder" if entry.kind == "folder" else "file"


class RealMachine:
    """Looks at paths. Remembers the last folder: most paths are near the one before."""

    def __init__(self) -> None:
        self._path = ""
        self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.forget()

    def forget(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._path, self._folder = "", -1

    def within(self, path: str) -> tuple[int, str]:
        """A descriptor of the folder that a path is in, open until the next call, and the last part of the path.

        Raises OSError: FileNotFoundError, or NotADirectoryError if a part of the way is a link or a file.
        """
        parent, _, name = path.rpartition("/")
        if parent != self._path or self._folder < 0:
            self.forget()
            self._folder = open_in("/", parent)
            self._path = parent
        return self._folder, name

    def look(self, path: str) -> os.stat_result | None:
        """What is there now; None if nothing is, if we may not look, or if the only way to it is through a link."""
        try:
            folder, name = self.within(path)
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None

    def open(self, path: str) -> int:
        """For reading."""
        folder, name = self.within(path)
        return os.open(name, _READ, dir_fd=folder)

    def link(self, path: str) -> str:
        folder, name = self.within(path)
        return os.readlink(name, dir_fd=folder)

    def names(self, path: str) -> list[str]:
        """What is in a folder; nothing if we may not look."""
        with suppress(OSError), using(self.open(path)) as descriptor:
            return sorted(os.listdir(descriptor))
        return []

    def count_files(self, path: str) -> int:
        """How many files are below a folder, up to a number that says enough."""
        folder, name = self.within(path)
        count = 0
        for below, inner, files, here in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
            count += len(files) + sum(_is_link(each, here) for each in inner)
            if below.count("/") >= _MAX_LEVELS:
                inner.clear()
            if count > _MAX_COUNTED:
                return _MAX_COUNTED
        return count


def is_unchanged(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    """Whether what is there is what was there."""
    if before is None or now is None:
        return before is now
    same = ("st_mode", "st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(before, field) != getattr(now, field) for field in same):
        return False
    # If it had a second name, it may be that one which is gone by now, by our own hand.
    return before.st_ctime_ns == now.st_ctime_ns or before.st_nlink > 1


def is_same_content(one: int, other: int) -> bool:
    """Whether two open files have the same bytes."""
    at = 0
    while True:
        mine, its = os.pread(one, 1 << 20, at), os.pread(other, 1 << 20, at)
        if mine != its:
            return False
        if not mine:
            return True
        at += len(mine)


def _is_link(name: str, within: int) -> bool:
    found = look(name, within)  # None: gone, or in a folder that we may list and not enter
    return found is not None and stat.S_ISLNK(found.st_mode)
