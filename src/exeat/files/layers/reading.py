"""Reads kept layers as one: what shows of them when the newest lies on top."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from exeat.jail.files.trees import is_whiteout, opaque_mark
from exeat.paths import opened

Kind = Literal["file", "link", "folder", "removed"]


class Entry(NamedTuple):
    """A path that a layer has something to say about. `tree` is the newest layer that does."""

    path: str
    kind: Kind
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


def _kind(found: os.stat_result) -> Kind:
    if is_whiteout(found):
        return "removed"
    return "link" if stat.S_ISLNK(found.st_mode) else "file"
