"""Changes as rows for a person: a new folder is one row, however much is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from exeat.files.changes import Change, Kind
from exeat.files.real import RealMachine


class Row(NamedTuple):
    """`path` ends in / for a folder. `files` are those in it; None: it is not a folder, or all of it is listed."""

    kind: Kind
    path: str
    size: int | None
    size_before: int | None
    files: int | None
    note: str


class Totals(NamedTuple):
    """Files and links; folders count only where they are removed."""

    added: int
    changed: int
    removed: int
    bytes: int  # of what would be written


def totals(changes: Sequence[Change]) -> Totals:
    counts = {"added": 0, "changed": 0, "removed": 0}
    for change in changes:
        if change.what != "folder" or change.kind == "removed":
            counts[change.kind] += 1
    return Totals(**counts, bytes=sum(change.size for change in changes))


def rows_of(real: RealMachine, changes: Sequence[Change], *, every: bool) -> list[Row]:
    """Rows in the order of the changes. `every`: what is in new folders, too."""
    rows: list[Row] = []
    at = 0
    while at < len(changes):
        change = changes[at]
        at += 1
        if change.what != "folder":
            rows.append(_row(change))
            continue
        if change.kind == "removed":
            rows.append(_row(change)._replace(path=f"{change.path}/", files=real.count_files(change.path)))
            continue
        inner = _below(changes, at, change.path)
        if not every and change.kind == "added":
            files = [each for each in inner if each.what != "folder"]
            size = sum(each.size for each in files)
            rows.append(Row("added", f"{change.path}/", size, None, len(files), change.note))
            at += len(inner)
        elif not inner or change.kind == "changed":
            rows.append(_row(change)._replace(path=f"{change.path}/"))
    return rows


def _below(changes: Sequence[Change], start: int, path: str) -> Sequence[Change]:
    """What follows in the list and lies below: it is sorted so."""
    end = start
    while end < len(changes) and changes[end].path.startswith(f"{path}/"):
        end += 1
    return changes[start:end]


def _row(change: Change) -> Row:
    note = change.note
    if change.what == "link" and change.entry is not None:
        note = f"link to {change.entry.link()}" + (f"; {note}" if note else "")
    is_file = change.what == "file"
    size = change.size if is_file and change.entry is not None else None
    before = change.size_before if change.before is not None and change.what != "folder" else None
    return Row(change.kind, change.path, size, before, None, note)
