"""Hidden paths that a command may have wanted, named when it failed.

That a program looked for a file which is not there leaves no trace, and to watch for it would slow everything down. So
this goes by what can be known: it failed, and it is one of the programs that use what is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exeat.files.keys import HiddenPath

_MOST_LINES = 3
_PLAIN = frozenset("/._-+@:,abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def name_hidden_keys(hidden: Iterable[HiddenPath], argv: Sequence[str]) -> list[str]:
    """A line for each of the first few."""
    words = {part.rpartition("/")[2] for word in argv for part in word.split()}
    missed = [entry for entry in hidden if any(words.issuperset(use.split(" ")) for use in entry.used_by)]
    return [
        f"{_printable(entry.path)} is hidden from the command ({entry.why}); to show it: --show {_quoted(entry.path)}"
        for entry in missed[:_MOST_LINES]
    ]


def _quoted(path: str) -> str:
    if _PLAIN.issuperset(path):
        return path
    return "'" + _printable(path).replace("'", "'\"'\"'") + "'"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
