"""How help is laid out: as argparse does it, as wide as the terminal, texts in the lines that they were written in."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

_DEFAULT_WIDTH = 80


class HelpText(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every option that is added, and loads shutil for the width: 3 ms at every start."""

    def __init__(self, prog: str, *, width: int | None = None, **rest: Any) -> None:
        super().__init__(prog, width=_width() - 2 if width is None else width, **rest)

    def add_argument(self, action: argparse.Action) -> None:
        """Commands are indented once more than options. argparse forgets that, and breaks the line of the longest."""
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            length = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)


def _width() -> int:
    """As shutil.get_terminal_size does."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and len(given) < 6 and int(given) > 0:
        return int(given)
    if sys.__stdout__ is None:  # closed by the caller
        return _DEFAULT_WIDTH
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH
