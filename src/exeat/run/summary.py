"""What was blocked, in a few lines for the person who ran the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

_MAX_LINES = 20


def print_summary(blocked: Sequence[dict[str, object]], out: TextIO) -> None:
    """Host, how often, and what would let it through. The texts come from the gateway, escaped."""
    total = sum(int(str(entry["count"])) for entry in blocked)
    times = "once" if total == 1 else f"{total} times"
    out.write(f"exeat: blocked {times}:\n")
    shown = blocked[:_MAX_LINES]
    width = max(len(str(entry["where"])) for entry in shown)
    count_width = max(len(str(entry["count"])) for entry in shown)
    for entry in shown:
        out.write(f"  {entry['where']!s:<{width}}  {entry['count']!s:>{count_width}}x  {entry['advice']}\n")
    if len(blocked) > len(shown):
        out.write(f"  and {len(blocked) - len(shown)} more; --audit FILE records all\n")
    out.flush()
