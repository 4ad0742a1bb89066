"""What the layers of a sandbox would change on this machine: added, changed and removed paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from exeat.files.layers.kept import kept_facts, kept_layers
from exeat.files.layers.reading import Entry, walk_layers
from exeat.files.layers.real import RealMachine, is_same_content
from exeat.paths import is_below, is_in, using

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder

Kind = Literal["added", "changed", "removed"]

HIDDEN: Final = "hidden from the command, so not compared"
HOLDS_HIDDEN: Final = "holds what was hidden from the command"
NEWER: Final = "changed outside since then"


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
