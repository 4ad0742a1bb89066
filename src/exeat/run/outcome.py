"""The result of a run: what was blocked and what failed, as text for people and as one JSON object for programs.

The gateway's process makes both texts. The process that started the command only adds how that ended: it has loaded
next to nothing, and by then nothing can be loaded any more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from exeat.errors import ExeatError
from exeat.jail.messages import Row

if TYPE_CHECKING:
    from exeat.run.learn.file_at_end import LearnOut
    from exeat.run.settings import Preparations


VERSION: Final = 1


class Outcome(NamedTuple):
    """`facts`: members of the JSON object, without its braces; empty if the gateway had died.

    `used_ssh`: something was let through to the port of SSH. `nesters`: programs that were refused a user namespace,
    which the gateway does not know of.
    """

    denied: tuple[Row, ...] = ()
    failed: tuple[Row, ...] = ()
    facts: str = ""
    used_ssh: bool = False
    learned: str = ""  # a policy for what was let through
    nesters: tuple[str, ...] = ()


UNKNOWN: Final = Outcome()
_NO_FACTS: Final = (
    '"sandbox": null, "jail": null, "allowed": [], "denied": [], "failed": [], '
    '"more": {"allowed": 0, "denied": 0, "failed": 0}'
)


def as_json(outcome: Outcome, status: int | None, error: str = "") -> str:
    """The whole object, on one line. `status` None: the command was not started, or not run to its end."""
    complete = "true" if outcome.facts else "false"
    nesters = ", ".join(map(_quoted, outcome.nesters))
    return (
        f'{{"version": {VERSION}, "exit_status": {"null" if status is None else status}, "complete": {complete}, '
        f'"error": {_quoted(error) if error else "null"}, "refused_namespaces": [{nesters}], '
        f"{outcome.facts or _NO_FACTS}}}\n"
    )


def _quoted(text: str) -> str:
    """A JSON string. Not by `json`, which is not loaded where this is needed."""
    plain = (char if char.isascii() and char.isprintable() and char not in '"\\' else _escaped(char) for char in text)
    return f'"{"".join(plain)}"'


def _escaped(char: str) -> str:
    """As UTF-16, by hand: no codec can be loaded once imports are sealed."""
    code = ord(char)
    units = (code,) if code < 0x10000 else (0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF))
    return "".join(f"\\u{unit:04x}" for unit in units)


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
