"""What was blocked, in a few lines for the person who ran the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from exeat.run.preparations import Preparations

_MAX_LINES = 20
GATEWAY_GONE = "the gateway has ended; the command has no network from now on"


def say(text: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"exeat: {text}\n")
        sys.stderr.flush()


def announce(prepared: Preparations, *, quiet: bool) -> None:
    """Before the command starts: what it gets of the secrets, and where they go."""
    if not quiet:
        for line in prepared.said:
            say("".join(char if char.isprintable() else "?" for char in line))


def print_summary(blocked: Sequence[tuple[str, int, str]], out: TextIO | None = None) -> None:
    """Where, how often, and what would let it through. The texts come from the gateway, escaped."""
    out = out or sys.stderr
    if out is None:
        return
    total = sum(count for _, count, _ in blocked)
    out.write(f"exeat: blocked {'once' if total == 1 else f'{total} times'}:\n")
    shown = blocked[:_MAX_LINES]
    width = max(len(where) for where, _, _ in shown)
    count_width = max(len(str(count)) for _, count, _ in shown)
    for where, count, advice in shown:
        out.write(f"  {where:<{width}}  {count:>{count_width}}x  {advice}\n")
    if len(blocked) > len(shown):
        out.write(f"  and {len(blocked) - len(shown)} more; --audit FILE records all\n")
    out.flush()
