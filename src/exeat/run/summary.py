"""What was blocked and what failed, in a few lines for the person who ran the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from exeat.errors import ExeatError

if TYPE_CHECKING:
    from exeat.run.gateway_process.preparations import Preparations
    from exeat.run.learn.file_at_end import LearnOut
    from exeat.run.outcome import Outcome, Row

_MAX_LINES = 20
GATEWAY_GONE = "the gateway has ended; the command has no network from now on"
LAYER_FULL = "the command was ended: it wrote more outside the project than --layer-size allows"


def say(text: str) -> None:
    """One line on standard error, if there is one. The command may have chosen names in it."""
    if sys.stderr is not None:
        shown = "".join(char if char.isprintable() else "?" for char in text)
        sys.stderr.write(f"exeat: {shown}\n")
        sys.stderr.flush()


def announce(prepared: Preparations, *, quiet: bool) -> None:
    """Before the command starts: what it gets of the secrets, and where they go."""
    if not quiet:
        for line in prepared.said:
            say(line)


def print_summary(outcome: Outcome, name: str = "", out: TextIO | None = None) -> None:
    """Where, how often, and what would help. The texts come from the gateway, escaped.

    `name` is the sandbox's, if it has one: then there is a list to keep a rule in.
    """
    out = out or sys.stderr
    if out is None:
        return
    if outcome.denied:
        shows_all = f"exeat proxy log --blocked --name {name} shows" if name else "--audit FILE records"
        _print_rows("blocked", outcome.denied, shows_all, out)
        if name:
            out.write(f"  to keep a rule: exeat proxy allow HOST --name {name}\n")
    if outcome.failed:
        shows_all = f"exeat proxy log --name {name} shows" if name else "--audit FILE records"
        _print_rows("allowed, but failed", outcome.failed, shows_all, out)
    out.flush()


def _print_rows(title: str, rows: Sequence[Row], shows_all: str, out: TextIO) -> None:
    total = sum(count for _, count, _ in rows)
    out.write(f"exeat: {title} {'once' if total == 1 else f'{total} times'}:\n")
    shown = rows[:_MAX_LINES]
    width = max(len(where) for where, _, _ in shown)
    count_width = max(len(str(count)) for _, count, _ in shown)
    for where, count, advice in shown:
        out.write(f"  {where:<{width}}  {count:>{count_width}}x  {advice}\n")
    if len(rows) > len(shown):
        out.write(f"  and {len(rows) - len(shown)} more; {shows_all} all\n")


def print_learned(text: str, to: LearnOut | None = None, out: TextIO | None = None) -> None:
    """The policy that was learned: into its file, with a line that says so, or else here. It is never lost."""
    out = out or sys.stderr
    if not text:
        if to is not None:
            to.discard()
        say("nothing was learned: the gateway ended before the command")
        return
    if to is not None:
        try:
            to.write(text)
        except ExeatError as error:
            to.discard()
            say(f"{error.public}; so here it is:")
        else:
            say(f"the learned policy is in {to.path}; use it: exeat run --policy {shell_word(to.path)} -- COMMAND")
            return
    if out is not None:
        out.write(text)
        out.flush()


def shell_word(text: str) -> str:
    """As a shell takes it. Not by `shlex`, which would have to be loaded."""
    plain = all(char.isascii() and (char.isalnum() or char in "@%+=:,./-_") for char in text)
    return text if plain and text else "'" + text.replace("'", "'\"'\"'") + "'"
