"""Merges layers into one, without the paths to be discarded."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Final

from exeat.errors import ExeatError
from exeat.files.layers.comparing import Entry, RealMachine, walk_layers
from exeat.files.layers.kept import (
    BLOCK,
    UNFINISHED,
    Facts,
    LayerTree,
    NewLayer,
    copy_file,
    open_trees,
    read_facts,
    turn,
)
from exeat.jail.files.trees import OPAQUE, make_whiteout
from exeat.paths import is_in, is_inside, opened, using
from exeat.sandbox.files import remove_tree
from exeat.sandbox.folder import SandboxFolder

MAX_LAYERS: Final = 8


def fold_layers(folder: SandboxFolder) -> None:
    """At the start of a run: if there are many layers, make one of the newest of them that no other run uses."""
    with _opened_trees(folder) as (layers, trees):
        free = list(takewhile(lambda each: _is_free(each[1]), trees))
        if len(free) > MAX_LAYERS:
            with suppress(ExeatError):  # no room on the disk, say: they are as good as before
                _fold(folder, layers, free, ())


def forget(folder: SandboxFolder, paths: Sequence[str]) -> None:
    """Forget all that is at these paths and below them; with none, everything. Raises ExeatError if a run uses it."""
    with _opened_trees(folder) as (layers, trees):
        if not all(_is_free(tree) for _, tree in trees):
            raise ExeatError(
                f'a command runs in the sandbox "{folder.name}" and uses its layers', detail="end it first"
            )
        if paths and trees:
            _fold(folder, layers, trees, paths)
        else:
            _remove(layers, trees)


@contextmanager
def _opened_trees(folder: SandboxFolder) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The folder of layers, and numbers and trees of all of them, newest first. It is our turn as long."""
    with turn(folder) as layers:
        trees = open_trees(folder, layers) if layers is not None else []
        try:
            yield -1 if layers is None else layers, trees
        finally:
            for _, tree in trees:
                os.close(tree)


def _is_free(tree: int) -> bool:
    """Takes the layer for us alone, until the descriptor is closed."""
    try:
        fcntl.flock(tree, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fold(folder: SandboxFolder, layers: int, trees: Sequence[tuple[int, int]], without: Sequence[str]) -> None:
    """The new layer lies above those that it is made of. So a crash before these are gone changes nothing."""
    known = [read_facts(folder, layers, number) for number, _ in trees]
    try:
        with NewLayer(folder, layers) as layer:
            folded = _Folded(layer.tree, without)
            for entry in walk_layers([tree for _, tree in trees]):
                if not is_in(entry.path, without):
                    folded.add(entry)
            folded.finish()
            if folded.files or folded.has_new_folder:
                hidden = tuple(dict.fromkeys(path for facts in known for path in facts.hidden))
                always = set(known[0].always_hidden).intersection(*(facts.always_hidden for facts in known))
                began_ns = min(facts.began_ns for facts in known)
                layer.keep(Facts(folded.bytes, folded.files, began_ns, hidden, tuple(sorted(always))))
    except OSError as error:
        raise ExeatError(f"the layers cannot be merged: {error.strerror or error}", detail=str(error)) from None
    _remove(layers, trees)


class _Folded(LayerTree):
    """A layer made of others. Files are not copied: a second name costs nothing, and no layer is ever changed."""

    def __init__(self, tree: int, without: Sequence[str]) -> None:
        super().__init__(tree)
        self._without = without
        self._copies: dict[tuple[int, int], str] = {}

    def add(self, entry: Entry) -> None:
        path = entry.path[1:]
        self.bytes += BLOCK
        if entry.kind == "folder":
            os.mkdir(path, 0o700, dir_fd=self._tree)
            self.remember(entry.path, entry.found)
            if entry.hides_below:
                self.files += 1
                self._hide(entry)
            return
        self.files += 1
        if entry.kind == "removed":
            make_whiteout(path, self._tree)
            return
        self.bytes += entry.found.st_blocks * 512
        same = entry.found.st_dev, entry.found.st_ino
        known, tree = (self._copies[same], self._tree) if same in self._copies else (path, entry.tree)
        try:
            os.link(known, path, src_dir_fd=tree, dst_dir_fd=self._tree, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK or entry.kind != "file":
                raise
            with using(entry.open()) as source:  # it has as many names as this file system lets it have
                copy_file(source, self._tree, path, entry.found, entry.found.st_mode & 0o777)
            self._copies[same] = path

    def _hide(self, entry: Entry) -> None:
        """All that the machine has in a folder; if some of it is to show again, every other name in it."""
        with opened(entry.path[1:], within=self._tree) as within:
            if not self._leads_to_forgotten(entry.path):
                os.setxattr(within, entry.mark or (OPAQUE[1] if self._as_root else OPAQUE[0]), b"y")
                return
            with RealMachine() as real:
                for name in real.names(entry.path):
                    path = f"{entry.path}/{name}"
                    forgotten = is_in(path, self._without) or self._leads_to_forgotten(path)
                    if name not in entry.names and not forgotten:
                        make_whiteout(name, within)

    def _leads_to_forgotten(self, path: str) -> bool:
        return any(is_inside(each, path) for each in self._without)


def _remove(layers: int, trees: Sequence[tuple[int, int]]) -> None:
    """Newest first: what is left after a crash is what was there before the last runs."""
    for number, _ in trees:
        name = f"{UNFINISHED}{number:06d}"
        os.rename(f"{number:06d}", name, src_dir_fd=layers, dst_dir_fd=layers)
        remove_tree(layers, name)
