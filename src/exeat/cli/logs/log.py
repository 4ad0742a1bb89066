"""`exeat proxy log`: what a sandbox was allowed and refused, for a person or, line by line, for a program."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from exeat.errors import ConfigError

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder

DEFAULT_LINES = 40
FOLLOW_AFTER_LINES = 10
"""How many earlier lines `-f` begins with."""


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """The options of `exeat proxy log`. Nothing else is loaded for them."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on and show what is blocked, as it happens")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--blocked", action="store_true", help="only what was blocked (as -f alone does)")
    what.add_argument("--all", action="store_true", help="what was allowed too (as without -f)")
    parser.add_argument("--json", action="store_true", help="print the records as they are, one a line")
    parser.add_argument(
        "--since", metavar="WHEN", help="from then on: 10m, 2h, 3d, 14:30, 2025-01-31, 2025-01-31T14:30Z"
    )
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_count,
        help=f"the last N lines (default {DEFAULT_LINES}; {FOLLOW_AFTER_LINES} with -f; all with --since)",
    )


def show_log(options: argparse.Namespace, folder: SandboxFolder) -> int:
    """Print the log of a sandbox. With -f until Ctrl-C (130).

    Raises ConfigError for a log that must not be read, and BrokenPipeError when the reader of the output has left.
    """
    from exeat.cli.logs.view import LogView, Wish

    if sys.stdout is None:
        raise ConfigError("standard output is closed: there is nowhere to show the log")
    wish = Wish(
        is_following=options.follow,
        is_blocked_only=options.blocked or (options.follow and not options.all),
        is_raw=options.json,
        since=options.since,
        lines=options.lines,
    )
    try:
        return LogView(folder, wish).show()
    except KeyboardInterrupt:
        return 130


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)
