"""Changes as rows for a person: a new folder is one row, however much is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from exeat.files.layers.comparing import Change, Kind, RealMachine
from exeat.paths import is_inside

# The command wrote one of the two, and comparing lines takes time that grows with their square.
MAX_BYTES: Final = 256 * 1024
MAX_LINES: Final = 5_000


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
        inner = _below(change.path, islice(changes, at, None))
        if not every and change.kind == "added":
            files = [each for each in inner if each.what != "folder"]
            size = sum(each.size for each in files)
            rows.append(Row("added", f"{change.path}/", size, None, len(files), change.note))
            at += len(inner)
        elif not inner or change.kind == "changed":
            rows.append(_row(change)._replace(path=f"{change.path}/"))
    return rows


def _below(path: str, following: Iterable[Change]) -> list[Change]:
    """What lies below comes first: they are sorted so."""
    return list(takewhile(lambda each: is_inside(each.path, path), following))


def _row(change: Change) -> Row:
    note = change.note
    if change.what == "link" and change.entry is not None:
        note = f"link to {change.entry.link()}" + (f"; {note}" if note else "")
    is_file = change.what == "file"
    size = change.size if is_file and change.entry is not None else None
    before = change.size_before if change.before is not None and change.what != "folder" else None
    return Row(change.kind, change.path, size, before, None, note)


class NotShownError(Exception):
    """Why there is nothing to show."""


def text_diff(real: RealMachine, change: Change) -> list[str]:
    """Lines, without their ends. Raises NotShownError."""
    from difflib import unified_diff  # only where it is asked for

    if change.is_hidden:
        raise NotShownError(change.note)
    before, after = _before(real, change), _after(change)
    made = unified_diff(before, after, f"{change.path} (outside)", f"{change.path} (in the layer)", lineterm="")
    return list(made) or ["only its permissions differ"]


def _before(real: RealMachine, change: Change) -> list[str]:
    if change.before is None:
        return []
    if stat.S_ISLNK(change.before.st_mode):
        return [f"a link to {real.link(change.path)}"]
    if not stat.S_ISREG(change.before.st_mode):
        raise NotShownError("it is not a file")
    try:
        return _lines(real.open(change.path))
    except OSError as error:
        raise NotShownError(error.strerror or str(error)) from None


def _after(change: Change) -> list[str]:
    if change.entry is None:
        return []
    if change.what == "link":
        return [f"a link to {change.entry.link()}"]
    if change.what == "folder":
        raise NotShownError("it is a folder")
    return _lines(change.entry.open())


def _lines(descriptor: int) -> list[str]:
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_BYTES:
            raise NotShownError("it is too long")
        raw = file.read(MAX_BYTES)
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise NotShownError("it is not text") from None
    if b"\0" in raw:
        raise NotShownError("it is not text")
    if len(lines) > MAX_LINES:
        raise NotShownError("it is too long")
    if lines[-1]:
        lines.append("\\ no newline at the end")
    else:
        lines.pop()
    return lines
