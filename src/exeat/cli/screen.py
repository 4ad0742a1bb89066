"""Text for people: without control characters, aligned, and coloured if wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from exeat.errors import ConfigError

DIM = "2"
RED = "31"
GREEN = "32"
YELLOW = "33"


def plain(text: str) -> str:
    """One line that a terminal shows as it is. Host names and comments may come from those who are locked in."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def in_ascii(text: str) -> str:
    """As `plain`, for what a program chose: no letters either that only look like others."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if " " <= letter <= "~" else ascii(letter)[1:-1] for letter in text)


def has_colours(stream: TextIO) -> bool:
    """A terminal, unless the user said no: https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    return f"\033[{colour}m{text}\033[0m"


def painted(text: str, colour: str, *, error: bool = False) -> str:
    """Coloured, if colours are wanted where it is to be printed."""
    return coloured(text, colour) if colour and has_colours(sys.stderr if error else sys.stdout) else text


def say(text: str, colour: str = "", *, error: bool = False) -> None:
    """Print lines. What the terminal's encoding cannot show is escaped, never an error."""
    stream = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(painted(text.encode(encoding, "backslashreplace").decode(encoding), colour, error=error), file=stream)


def aligned(rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as lines whose columns begin under each other. Columns in `right` end under each other."""
    table = [tuple(row) for row in rows]
    if not table:
        return []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 rule`, `2 rules`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def confirmed(what: str, *, yes: bool) -> bool:
    """Whether to do it. Asks the user; a program has to say --yes. Raises ConfigError if there is neither."""
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigError(f"{what}, and there is no terminal to ask at", expected="--yes, if that is what you want")
    print(f"{what}.\nType yes to do it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() == "yes":
        return True
    print("exeat: nothing was changed", file=sys.stderr)
    return False
