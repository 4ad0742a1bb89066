"""The list of keys that ships with exeat, `keys.txt`, read. What the lines mean is said at its top."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class KeyLine(NamedTuple):
    """A line of the list. `path` is as it is written there: it begins with ~/, / or $NAME."""

    path: str
    why: str
    keeps: tuple[str, ...] = ()  # names in the folder that stay
    program: str = ""  # the command that needs it
    only_if_secret: bool = False
    only_root: bool = False


def load_key_list(may_mean: Callable[[str], bool] | None = None) -> list[KeyLine]:
    """The list as it ships. ValueError for a line that says nothing: never skipped, since it may mean a key.

    `may_mean`: whether a line, as it is written, can mean anything here. All others are passed over, which is quicker.
    """
    with open(f"{__file__.rpartition('/')[0]}/keys.txt", encoding="utf-8") as file:
        return parse_key_list(file.read(), may_mean)


def parse_key_list(text: str, may_mean: Callable[[str], bool] | None = None) -> list[KeyLine]:
    """The lines of a list."""
    found = []
    why, only_root = "", False
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            why = line[1:-1]
            only_root = why.startswith("root: ")
            why = why.removeprefix("root: ")
        elif line[0] not in "~/$":
            raise ValueError(f"keys.txt: {line!r} is no path")
        elif may_mean is None or may_mean(line):
            found.append(_read_line(line, why, only_root=only_root))
    return found


def _read_line(line: str, why: str, *, only_root: bool) -> KeyLine:
    if line[-1] != ")":
        return KeyLine(line, why, only_root=only_root)
    path, _, condition = line[:-1].rpartition(" (")
    if condition == "if it holds a secret":
        return KeyLine(path, why, only_if_secret=True, only_root=only_root)
    word, _, names = condition.partition(": ")
    if word == "keeps" and names:
        return KeyLine(path, why, keeps=tuple(names.split(", ")), only_root=only_root)
    if word == "for" and names:
        return KeyLine(path, why, program=names, only_root=only_root)
    raise ValueError(f"keys.txt: {line!r} has an unknown condition")
