"""`exeat files diff|apply|discard`. Everything that is shown may have been chosen by the command in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from exeat.cli.screen import GREEN, RED, YELLOW, aligned, confirmed, counted, plain, say
from exeat.errors import ConfigError, ExeatError
from exeat.files.layers.applying import apply, objection, plan
from exeat.files.layers.comparing import Change, Comparison
from exeat.files.layers.folding import forget
from exeat.files.layers.kept import layer_numbers
from exeat.files.layers.showing import NotShownError, Row, rows_of, text_diff, totals
from exeat.paths import is_in, typed_path
from exeat.policy.host import shown
from exeat.sandbox.disk import disk_bytes, read_note, remove_disk
from exeat.sandbox.folder import SandboxFolder, open_sandbox

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
            say(f'nothing outside the project has changed in the sandbox "{name}"')
        else:
            print_rows(rows)
            say(summary(chosen))
        if disk := _disk(folder):
            say(f"not listed: {disk}", error=True)
    return 0


def choose(changes: Sequence[Change], paths: Sequence[str]) -> list[Change]:
    """Changes at these paths, as they were typed, and below them. Raises ConfigError for one without any."""
    wanted = []
    for typed in paths:
        path = typed_path(typed)
        if not any(is_in(change.path, [path]) for change in changes):
            raise ConfigError(f"nothing has changed at {shown(path)}", where="PATH", expected="a path that diff lists")
        wanted.append(path)
    return [change for change in changes if is_in(change.path, wanted)]


def print_rows(rows: Sequence[Row]) -> None:
    lines = aligned([(_LETTERS[row.kind][0], _sizes(row), _name(row)) for row in rows], right=frozenset({1}))
    for row, line in zip(rows, lines, strict=True):
        say(line, _LETTERS[row.kind][1])


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
    for change in changes:
        if change.what == "folder":
            continue
        try:
            lines = text_diff(comparison.real, change)
        except NotShownError as error:
            say(f"{plain(change.path)}: not shown: {plain(str(error))}")
            continue
        for line in lines:
            say("\t".join(map(plain, line.split("\t"))), {"+": GREEN, "-": RED}.get(line[:1], ""))


def _print_json(name: str, changes: Sequence[Change], rows: Sequence[Row]) -> None:
    import json

    listed = [row._asdict() for row in rows]
    print(json.dumps({"sandbox": name, "totals": totals(changes)._asdict(), "changes": listed}, indent=2))


def apply_paths(name: str, paths: Sequence[str], *, every: bool, yes: bool) -> int:
    """Copy changes to the machine, once it has been said what that overwrites."""
    if bool(paths) == every:
        raise ConfigError("say what to apply", where="exeat files apply", expected="PATH..., or --all for everything")
    with open_sandbox(name) as folder, Comparison(folder) as comparison:
        if paths:
            choose(comparison.changes(), paths)  # says so if there is nothing at one of them
        changes = plan(comparison, [typed_path(path) for path in paths])
        refused = [(change, why) for change in changes if (why := objection(change))]
        for change, why in refused:
            say(f"exeat: skipped: {plain(change.path)}: {plain(why)}", error=True)
        left_paths = {change.path for change, _ in refused}
        wanted = [change for change in changes if change.path not in left_paths]
        if not wanted:
            say("nothing to apply")
            return 1
        _name_what_goes(comparison, wanted)
        if not confirmed(f"this writes to your machine, outside any sandbox: {summary(wanted)}", yes=yes):
            return 1
        failed = list(apply(comparison, wanted))
        for left in failed:
            say(f"exeat: skipped: {plain(left.path)}: {plain(left.why)}", error=True)
    say(f"applied {counted(len(wanted) - len(failed), 'change')}")
    return 1 if failed or refused else 0


def _name_what_goes(comparison: Comparison, changes: Sequence[Change]) -> None:
    """First of all what is lost by it, then what is new."""
    lost = [change for change in changes if change.before is not None]
    new = [change for change in changes if change.before is None]
    for heading, group in (("overwritten or removed:", lost), ("added:", new)):
        if group:
            say(heading)
            print_rows(rows_of(comparison.real, group, every=True))


def discard_paths(name: str, paths: Sequence[str], *, yes: bool) -> int:
    """Forget changes. The machine's own files are not touched."""
    with open_sandbox(name) as folder:
        disk = "" if paths else _disk(folder)
        if not layer_numbers(folder) and not disk:
            say(f'there is nothing to discard in the sandbox "{name}"')
            return 1
        try:
            what = _show_what_is_kept(folder, paths)
        except (ExeatError, OSError) as error:
            if paths or isinstance(error, ConfigError):
                raise
            what = f"everything ({error.public if isinstance(error, ExeatError) else error.strerror})"
        what += f", and {disk}" if disk else ""
        if not confirmed(f'this discards changes in the sandbox "{name}": {what}', yes=yes):
            return 1
        if disk:
            remove_disk(folder)
        forget(folder, [typed_path(path) for path in paths])
    say("discarded")
    return 0


def _disk(folder: SandboxFolder) -> str:
    """Of its virtual machines, in words; "" if there is none."""
    size = disk_bytes(folder)
    image = read_note(folder).get("image", "") if size else ""
    return f"the disk of its guests ({in_units(size)}, image {plain(str(image))})" if size else ""


def _show_what_is_kept(folder: SandboxFolder, paths: Sequence[str]) -> str:
    with Comparison(folder) as comparison:
        changes = comparison.changes()
        chosen = choose(changes, paths) if paths else changes
        print_rows(rows_of(comparison.real, chosen, every=False))
        return summary(chosen)
