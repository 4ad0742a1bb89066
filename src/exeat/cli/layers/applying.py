"""`exeat files apply|discard`."""

from __future__ import annotations

from collections.abc import Sequence

from exeat.cli.layers.listing import choose, print_rows, summary
from exeat.cli.screen import confirmed, counted, plain, say
from exeat.errors import ConfigError, ExeatError
from exeat.files.layers.applying import apply, objection, plan
from exeat.files.layers.comparing import Change, Comparison
from exeat.files.layers.folding import forget
from exeat.files.layers.kept import layer_numbers
from exeat.files.layers.showing import rows_of
from exeat.paths import typed_path
from exeat.sandbox.folder import SandboxFolder, open_sandbox


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
            say(f"exeat: left: {plain(change.path)}: {plain(why)}", error=True)
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
            say(f"exeat: left: {plain(left.path)}: {plain(left.why)}", error=True)
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
        if not layer_numbers(folder):
            say(f'nothing is kept in the sandbox "{name}"')
            return 1
        try:
            what = _show_what_is_kept(folder, paths)
        except (ExeatError, OSError) as error:
            if paths or isinstance(error, ConfigError):
                raise
            what = f"all that it keeps ({error.public if isinstance(error, ExeatError) else error.strerror})"
        if not confirmed(f'the sandbox "{name}" forgets {what}', yes=yes):
            return 1
        forget(folder, [typed_path(path) for path in paths])
    say("forgotten")
    return 0


def _show_what_is_kept(folder: SandboxFolder, paths: Sequence[str]) -> str:
    with Comparison(folder) as comparison:
        changes = comparison.changes()
        chosen = choose(changes, paths) if paths else changes
        print_rows(rows_of(comparison.real, chosen, every=False))
        return f"this: {summary(chosen)}"
