"""The way that a path takes, part by part, as the kernel goes it: for whoever must know what could be turned on it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

_MAX_LINKS = 40  # as the kernel


class Step(NamedTuple):
    """A part of the way: the folder that it is in, without links, its own path, and whether it leads elsewhere.

    `fault`: why the way ends here. `is_last`: nothing comes after it, if it is no link.
    """

    folder: str
    here: str
    is_link: bool = False
    is_last: bool = False
    fault: OSError | None = None


def steps(path: str) -> Iterator[Step]:
    """Every part of the way to a full path, links followed. If it does not lead there, the last step has a fault."""
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
        yield Step(at, here, is_link, is_last=not any(rest))
        if not is_link:
            at = here
            continue
        if target.startswith("/"):
            at = "/"
        rest += target.split("/")[::-1]
