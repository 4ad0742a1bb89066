"""`exeat files diff`: changes as lines. Everything in them may have been chosen by those who are locked in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from exeat.cli.screen import GREEN, RED, YELLOW, aligned, coloured, counted, has_colours, plain, say
from exeat.errors import ConfigError
from exeat.files.layers.comparing import Change, Comparison
from exeat.files.layers.showing import NotShownError, Row, rows_of, text_diff, totals
from exeat.paths import is_in, typed_path
from exeat.policy.host import shown
from exeat.sandbox.folder import open_sandbox

_LETTERS: Final = {"added": ("A", GREEN), "changed": ("M", YELLOW), "removed": ("D", RED)}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def show_differences(name: str, paths: Sequence[str], *, text: bool, every: bool, as_json: bool) -> int:
    """Print what has changed in a sandbox."""
    with open_sandbox(name) as folder, Comparison(folder) as comparison:
        changes = comparison.changes()
        chosen = choose(changes, paths) if paths else changes
        if text:
            _print_texts(comparison, chosen)
            return 0
        rows = rows_of(comparison.real, chosen, every=every or bool(paths))
        if as_json:
            _print_json(name, chosen, rows)
        elif not chosen:
            say(f'nothing that a command changed outside its project is kept in the sandbox "{name}"')
        else:
            print_rows(rows)
            say(summary(chosen))
    return 0


def choose(changes: Sequence[Change], paths: Sequence[str]) -> list[Change]:
    """Changes at these paths, as they were typed, and below them. Raises ConfigError for one without any."""
    wanted = []
    for typed in paths:
        path = typed_path(typed)
        if not any(is_in(change.path, [path]) for change in changes):
            raise ConfigError(f"no change is kept at {shown(path)}", where="PATH", expected="a path that diff lists")
        wanted.append(path)
    return [change for change in changes if is_in(change.path, wanted)]


def print_rows(rows: Sequence[Row]) -> None:
    lines = aligned([(_LETTERS[row.kind][0], _sizes(row), _name(row)) for row in rows], right=frozenset({1}))
    colours = has_colours(sys.stdout)
    for row, line in zip(rows, lines, strict=True):
        say(coloured(line, _LETTERS[row.kind][1]) if colours else line)


def summary(changes: Sequence[Change]) -> str:
    found = totals(changes)
    return f"{found.added:,} added, {found.changed:,} changed, {found.removed:,} removed ({in_units(found.bytes)})"


def in_units(size: int) -> str:
    """`1.5 MB`."""
    value = float(size)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _name(row: Row) -> str:
    notes = [counted(row.files, "file")] if row.files is not None else []
    notes += [plain(row.note)] if row.note else []
    return plain(row.path) + (f"  ({'; '.join(notes)})" if notes else "")


def _sizes(row: Row) -> str:
    sizes = [in_units(size) for size in (row.size_before, row.size) if size is not None]
    return " -> ".join(sizes)


def _print_texts(comparison: Comparison, changes: Sequence[Change]) -> None:
    colours = has_colours(sys.stdout)
    for change in changes:
        if change.what == "folder":
            continue
        try:
            lines = text_diff(comparison.real, change)
        except NotShownError as error:
            say(f"{plain(change.path)}: not shown: {plain(str(error))}")
            continue
        for line in lines:
            harmless = "\t".join(map(plain, line.split("\t")))
            colour = {"+": GREEN, "-": RED}.get(line[:1]) if colours else None
            say(coloured(harmless, colour) if colour else harmless)


def _print_json(name: str, changes: Sequence[Change], rows: Sequence[Row]) -> None:
    import json  # noqa: PLC0415 - for this alone

    listed = [row._asdict() for row in rows]
    print(json.dumps({"sandbox": name, "totals": totals(changes)._asdict(), "changes": listed}, indent=2))
