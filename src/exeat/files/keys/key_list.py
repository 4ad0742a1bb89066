"""The list of keys that ships with exeat, `keys.txt`, read. What the lines mean is said at its top."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

_SHARE = "~/.local/share/"
FULL_FOLDERS = ("~/.config/", "~/.cache/", _SHARE)  # much of the list is in these


class KeyLine(NamedTuple):
    """A line of the list. `path` is as it is written there: it begins with ~/, / or $NAME."""

    path: str
    why: str
    keeps: tuple[str, ...] = ()  # names in the folder that stay
    program: str = ""  # the command that needs it
    used_by: tuple[str, ...] = ()  # commands that will miss it
    only_if_secret: bool = False
    only_root: bool = False


def load_key_list(begins: Container[str] | None = None) -> list[KeyLine]:
    """The list as it ships. `begins` is as for `parse_key_list`."""
    with open(f"{__file__.rpartition('/')[0]}/keys.txt", encoding="utf-8") as file:
        return parse_key_list(file.read(), begins)


def parse_key_list(text: str, begins: Container[str] | None = None) -> list[KeyLine]:
    """The lines of a list. ValueError for one that says nothing.

    `begins`: what a path must begin with to be of interest, such as `~/.aws`, `~/.config/gh`, `$KUBECONFIG` or `/etc`.
    A run, which waits for this, is spared the other hundreds.
    """
    lines = text.split("\n")
    if begins is None:
        wanted = [number for number, line in enumerate(lines) if line[:1] not in ("", "#", "[", " ")]
    else:
        # Up to the name in the home directory or in a full folder. In comments that is nothing that a path begins with.
        wanted = [
            number
            for number, line in enumerate(lines)
            if line[: f"{line}/".find("/", 15 if line[:15] == _SHARE else 10 if line.startswith(FULL_FOLDERS) else 2)]
            in begins
        ]
    headings = [number for number, line in enumerate(lines) if line[:1] == "["]
    found, at = [], 0
    for number in wanted:
        while at + 1 < len(headings) and headings[at + 1] < number:
            at += 1
        found.append(_read(lines, number, headings[at]))
    return found


def _read(lines: list[str], number: int, heading: int) -> KeyLine:
    if lines[number][0] not in "~/$":
        raise ValueError(f"keys.txt: {lines[number]!r} is no path")
    why = lines[heading][1:-1]
    read = KeyLine(lines[number], why.removeprefix("root: "), only_root=why.startswith("root: "))
    while (number := number + 1) < len(lines) and lines[number].startswith("    "):
        read = _with_condition(read, lines[number].strip())
    return read


def _with_condition(read: KeyLine, condition: str) -> KeyLine:
    word, _, rest = condition.partition(": ")
    names = tuple(rest.split(", "))
    if condition == "if it holds a secret":
        return read._replace(only_if_secret=True)
    if word == "keeps" and rest:
        return read._replace(keeps=names)
    if word == "for" and rest and len(names) == 1:
        return read._replace(program=rest, used_by=names)
    if word == "used by" and rest:
        return read._replace(used_by=names)
    raise ValueError(f"keys.txt: {condition!r} says nothing about {read.path}")
