"""What a sandbox keeps: its list (`exeat proxy create|allow|block|list|reset`) and what commands may do to files.

A change goes to the file first, then to the commands that run by it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exeat.cli.options import file_settings
from exeat.cli.screen import DIM, RED, confirmed, counted, painted, plain, say
from exeat.errors import ConfigError
from exeat.file_policy import FileSettings, combine
from exeat.sandbox.file_settings import (
    added_to,
    full_path,
    read_file_settings,
    settings_path,
    update_file_settings,
    without,
)
from exeat.sandbox.folder import open_sandbox

if TYPE_CHECKING:
    from exeat.sandbox.allowlist import Allowlist
    from exeat.sandbox.changes import Change
    from exeat.sandbox.folder import SandboxFolder


def create(name: str, *, empty: bool) -> int:
    """Make a sandbox. 1 if there is one of that name."""
    with open_sandbox(name, create=True, empty=empty) as folder:
        if not folder.was_created:
            say(f'exeat: the sandbox "{name}" already exists ({_size(folder)})', error=True)
            return 1
        how = "with an empty list: nothing is allowed" if empty else "with the list that exeat comes with"
        say(f'created the sandbox "{name}", {how} ({_size(folder)})')
        say(f"  {plain(folder.allowlist_path)}")
        return 0


def allow_rules(name: str, texts: Sequence[str]) -> int:
    """Store rules. 1 if something is still denied, or a running command did not take it."""
    from exeat.sandbox.changes import allow
    from exeat.sandbox.control import read_other_rules
    from exeat.sandbox.typed import read_allow

    for number, text in enumerate(texts, 1):
        read_allow(text, number)
    with open_sandbox(name) as folder:
        others = read_other_rules(name)
        return _report(name, allow(folder, texts, others.rules, unlisted=others.lets_through))


def block_rules(name: str, texts: Sequence[str]) -> int:
    """Take rules out, or store denials. 1 if something is still allowed, or a running command did not take it."""
    from exeat.sandbox.changes import block
    from exeat.sandbox.control import read_other_rules
    from exeat.sandbox.typed import read_block

    for number, text in enumerate(texts, 1):
        read_block(text, number)
    with open_sandbox(name) as folder:
        others = read_other_rules(name)
        change = block(folder, texts, others.rules, unlisted=others.may_let_through)
        return _report(name, change, others.problems)


def reset_rules(name: str, *, empty: bool, yes: bool) -> int:
    """Return to the shipped list, or to none. 1 if a person said no, or a running command did not take it."""
    from exeat.sandbox.changes import reset

    with open_sandbox(name) as folder:
        instead = "an empty one: nothing is allowed any more" if empty else "the one that exeat comes with"
        what = f'this replaces the list of the sandbox "{name}" ({_size(folder)}) with {instead}'
        if not confirmed(what, yes=yes):
            return 1
        return _report(name, reset(folder, empty=empty))


def list_rules(name: str, *, as_json: bool) -> int:
    """Print the list."""
    from exeat.sandbox.allowlist import read_allowlist

    with open_sandbox(name) as folder:
        found = read_allowlist(folder)
    if as_json:
        import json

        rules = [{"line": rule.source.line, "text": rule.text, "deny": rule.deny} for rule in found.rules]
        print(json.dumps({"name": name, "path": folder.allowlist_path, "rules": rules}, indent=2))
        return 0
    denials = sum(rule.deny for rule in found.rules)
    also = f", {counted(denials, 'denial')} among them" if denials else ""
    say(f"{name}: {counted(len(found.rules), 'rule')}{also}, in {plain(folder.allowlist_path)}")
    if not found.rules:
        say(f"nothing is allowed; to change that: exeat proxy allow --name {name} HOST")
    for line in _lines(found):
        say(line)
    return 0


def _lines(found: Allowlist) -> list[str]:
    """Every line of the file with its number, rules in their canonical form."""
    from exeat.policy.document import rule_part

    rules = {rule.source.line: rule for rule in found.rules}
    lines = found.text.removeprefix("\ufeff").split("\n")
    width = len(str(len(lines)))
    shown = []
    for number, line in enumerate(lines, 1):
        rule = rules.get(number)
        text = line.strip()
        if rule is not None:
            comment = plain(text.removeprefix(rule_part(line)).strip())
            behind = f"  {painted(comment, DIM)}" if comment else ""
            kind = f"{painted('deny', RED)}   " if rule.deny else "allow  "
            shown.append(f"{number:>{width}}  {kind}{rule.text.removeprefix('!')}{behind}")
        elif text:
            shown.append(f"{number:>{width}}  {painted(plain(text), DIM)}")
        elif shown and shown[-1]:  # blank lines keep groups apart; one will do
            shown.append("")
    while shown and not shown[-1]:
        shown.pop()
    return shown


def _size(folder: SandboxFolder) -> str:
    """How many rules there are. A list that cannot be read is no reason not to replace it."""
    from exeat.sandbox.allowlist import read_allowlist

    try:
        return counted(len(read_allowlist(folder).rules), "rule")
    except ConfigError:
        return "it cannot be read now"


def _report(name: str, change: Change, problems: Sequence[str] = ()) -> int:
    """Say what was stored, have running commands take it, and say what came of it."""
    from exeat.sandbox.control import tell

    for sentence in change.said:
        say(plain(sentence))
    told = tell(name)
    if told.taken:
        took = counted(told.taken, "running sandbox", "running sandboxes")
        say(f"applied to {took}, {counted(told.closed, 'connection')} closed")
    elif not told.failed:
        say("no command is running in it")
    for note in told.notes:
        say(plain(note))
    problems = (*change.still, *problems, *told.failed)
    for problem in problems:
        say(f"exeat: {plain(problem)}", error=True)
    return 1 if problems else 0


def keep_or_show(options: argparse.Namespace) -> int:
    """Keep what the options say, if they say anything, and print what is kept. Raises ConfigError."""
    more = file_settings(options).with_each(full_path)
    is_change = options.reset or bool(options.forget) or more != FileSettings()
    with open_sandbox(options.name) as folder:
        path = settings_path(folder)
        if is_change:
            kept = update_file_settings(
                folder, lambda before: added_to(without(before, options.forget), more), reset=options.reset
            )
        else:
            kept = read_file_settings(folder) or FileSettings(path)
    if options.json:
        import json

        print(json.dumps({"name": options.name, "path": path, "files": combine(FileSettings(), [kept])._asdict()}))
        return 0
    _print(options.name, kept, path)
    if is_change:
        say("takes effect from the next run")
    return 0


def _print(name: str, kept: FileSettings, path: str) -> None:
    if kept == FileSettings(path):
        say(f'the sandbox "{name}" has no file settings: commands get the view, and keys are hidden')
        return
    say(f"{plain(path)}")
    for key in ("mode", "write", "read_only", "hide", "show"):
        value = getattr(kept, key)
        for each in (value,) if isinstance(value, str) else value or ():
            say(f"  {key:<10}  {plain(each)}")
    if kept.layer_bytes is not None:
        say(f"  layer_size  {kept.layer_bytes:,} bytes")
    if kept.nest is not None:
        say(f"  nest        {'yes' if kept.nest else 'no'}")
