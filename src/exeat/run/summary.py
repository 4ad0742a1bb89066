"""What was blocked, in a few lines for the person who ran the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

_MAX_LINES = 20
GATEWAY_GONE = "the gateway has ended; the command has no network from now on"


def say(text: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"exeat: {text}\n")
        sys.stderr.flush()


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
