"""Questions about paths that all decisions on files share: containment, links, existence."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS: Final = 40  # as the kernel


def is_below(path: str, folder: str) -> bool:
    """Is it this folder, or in it? Both are full paths without links on the way."""
    return folder in (path, "/") or path.startswith(f"{folder}/")


def is_inside(path: str, folder: str) -> bool:
    """In it, and not the folder itself."""
    return path != folder and is_below(path, folder)


def is_in(path: str, folders: Iterable[str]) -> bool:
    """Is it one of these, or below one?"""
    return any(is_below(path, each) for each in folders)


def up_from(path: str, top: str = "/") -> Iterator[str]:
    """The path and the folders that it is in, up to the top, which is left out."""
    while path not in (top, "/"):
        yield path
        path = os.path.dirname(path)


def outermost(paths: Iterable[str]) -> list[str]:
    """Without those that lie in another of them."""
    found: list[str] = []
    for path in sorted(set(paths), key=lambda each: f"{each.rstrip('/')}/"):  # what is in one follows it
        if not found or not is_below(path, found[-1]):
            found.append(path)
    return found


def root_of(path: str, roots: Iterable[str]) -> str:
    """The innermost of these folders that the path is in. "" if there is none."""
    return max((root for root in roots if is_inside(path, root)), key=len, default="")


def full_path(text: str, home: str) -> str:
    """As a person writes a path: `~` is the home directory, and what does not begin with / is here."""
    if text == "~" or text.startswith("~/"):
        text = home.rstrip("/") + text[1:] or "/"
    return os.path.abspath(text)


def place_of(path: str) -> str:
    """The same path without links on the way. The last part stays, be it a link or not."""
    folder, name = os.path.split(path.rstrip("/") or "/")
    return os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(folder), name)


def typed_path(typed: str) -> str:
    """Links on the way are followed, as a shell would; the path itself may be one, and is meant as that."""
    return place_of(os.path.abspath(os.path.expanduser(typed)))


def name_matches(name: str, pattern: str) -> bool:
    """Is this a name that the pattern means? `*` stands for any characters, once."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)


def printable(text: str) -> str:
    """For a terminal: the command may have chosen it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def plain_line(text: str, most: int) -> str:
    """Plain characters on one line, whatever the text: it can end no comment and no string."""
    shown = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return shown if len(shown) <= most else f"{shown[:most]}..."


def look(path: str, within: int | None = None) -> os.stat_result | None:
    """What is there, be it a link. None if nothing is, or nothing that we may look at."""
    try:
        return os.stat(path, dir_fd=within, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def is_socket(path: str) -> bool:
    """Links are followed."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def using(descriptor: int) -> Iterator[int]:
    """Closed at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opened(path: str, flags: int = DIRECTORY, within: int | None = None) -> AbstractContextManager[int]:
    """A descriptor, closed at the end. It is opened by the call."""
    return using(os.open(path, flags, dir_fd=within))


class Step(NamedTuple):
    """A part of the way to a path: the folder that it is in, without links, its own path, and whether it is a link.

    `fault`: why the way ends here.
    """

    folder: str
    here: str
    is_link: bool = False
    fault: OSError | None = None


def steps(path: str) -> Iterator[Step]:
    """Every part of a full path, as the kernel walks it: protecting a path takes protecting all of these.

    Links are followed. If it does not lead there, the last step has a fault.
    """
    rest = path.split("/")[::-1]
    at, links = "/", 0
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at)
        if name in ("", ".", ".."):
            continue
        here = f"{at.rstrip('/')}/{name}"
        try:
            is_link = stat.S_ISLNK(os.lstat(here).st_mode)
            target = os.readlink(here) if is_link else ""
        except OSError as error:
            yield Step(at, here, fault=error)
            return
        links += is_link
        if links > _MAX_LINKS:
            yield Step(at, here, is_link, fault=OSError(errno.ELOOP, os.strerror(errno.ELOOP), path))
            return
        yield Step(at, here, is_link)
        if not is_link:
            at = here
            continue
        if target.startswith("/"):
            at = "/"
        rest += target.split("/")[::-1]


def links_on_way(path: str) -> list[str]:
    return [step.here for step in steps(path) if step.is_link]
