"""Walks a command's changes: the upper folders of its overlays, once nothing runs in them any more.

The command chose everything in there: names, modes, depth, kinds. It is read through descriptors, no link is followed,
and nothing is opened that could make one wait.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from exeat.jail.files.trees import HANDLE, is_whiteout, path_of
from exeat.paths import DIRECTORY, using

# An overlaid folder, as a full path, and a descriptor of its upper folder.
Part = tuple[str, int]

# Of a path in a layer. What is longer or deeper could not be opened again in one step, or not be removed.
MAX_PATH_BYTES: Final = 3500
MAX_DEPTH: Final = 190
MAX_PATHS: Final = 10_000  # that are remembered of a run


class Changes(NamedTuple):
    """What a command did to files outside the folders that were shared with it."""

    files: int = 0  # written, files and links
    removed: int = 0
    bytes: int = 0  # that the written ones take
    paths: tuple[str, ...] = ()  # of both kinds; the first of them
    is_complete: bool = True  # False: there are more

    @property
    def total(self) -> int:
        return self.files + self.removed


class Folder(NamedTuple):
    """A folder of an upper. `path` is relative to it ("" is the upper itself), `descriptor` is open for one step."""

    path: str
    descriptor: int
    entries: Iterator[tuple[str, os.stat_result]]


def count_changes(parts: Sequence[Part], limit: int) -> Changes:
    """Count the changes, up to a limit, of what is looked at: a command may have made millions, or of folders."""
    files = removed = size = looked_at = 0
    paths: list[str] = []
    for root, upper in parts:
        for folder in folders_of(upper):
            for name, found in folder.entries:
                if looked_at >= limit:
                    return Changes(files, removed, size, tuple(paths), is_complete=False)
                looked_at += 1
                if stat.S_ISDIR(found.st_mode):
                    continue
                if is_whiteout(found):
                    removed += 1
                else:
                    files += 1
                    size += found.st_blocks * 512
                if len(paths) < MAX_PATHS:
                    paths.append(joined(root, folder.path, name))
    return Changes(files, removed, size, tuple(paths))


def is_empty(upper: int) -> bool:
    with using(open_within(".", upper, DIRECTORY)) as descriptor, os.scandir(descriptor) as listed:
        return next(listed, None) is None


def folders_of(upper: int) -> Iterator[Folder]:
    """All folders of an upper, each before those in it. The caller takes all entries of one before the next."""
    pending = [("", [""])]  # names, and where they are: paths would take a hundred times as much memory
    while pending:
        parent, names = pending[-1]
        if not names:
            pending.pop()
            continue
        path = f"{parent}/{names.pop()}" if parent else names.pop()
        try:
            descriptor = open_within(path or ".", upper, DIRECTORY)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                continue  # too deep; saving a layer reports it
            raise
        inner: list[str] = []
        with using(descriptor):
            yield Folder(path, descriptor, _entries(descriptor, inner))
        pending.append((path, inner))


def _entries(descriptor: int, folders: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(descriptor) as listed:
        for entry in listed:
            found = entry.stat(follow_symlinks=False)
            yield entry.name, found
            if stat.S_ISDIR(found.st_mode):
                folders.append(entry.name)


def open_within(path: str, within: int, flags: int) -> int:
    """Open what the command may have locked (mode 000). It is ours, so it can be unlocked; it goes away anyway."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except PermissionError:
        handle = os.dup(within) if path == "." else os.open(path, HANDLE, dir_fd=within)
    with using(handle):
        os.chmod(path_of(handle), 0o700)  # never what a link leads to, which has no handle of this kind
        return os.open(path_of(handle), flags & ~os.O_NOFOLLOW | os.O_CLOEXEC)


def joined(root: str, path: str, name: str = "") -> str:
    """A full path from its parts, some of which may be empty."""
    return "/" + "/".join(part.strip("/") for part in (root, path, name) if part.strip("/"))


def is_too_far(path: str) -> bool:
    """Whether a full path is too long or too deep to be kept."""
    return len(os.fsencode(path)) > MAX_PATH_BYTES or path.count("/") > MAX_DEPTH
