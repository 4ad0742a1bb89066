"""The real machine, reached step by step: no part of a way is a link, whoever turns one into one meanwhile."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final, Self

from exeat.jail.files.trees import open_in
from exeat.paths import look, using

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_COUNTED: Final = 10_000
_MAX_DEPTH: Final = 50


class RealMachine:
    """Looks at paths. Remembers the last folder: most paths are near the one before."""

    def __init__(self) -> None:
        self._path = ""
        self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.forget()

    def forget(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._path, self._folder = "", -1

    def within(self, path: str) -> tuple[int, str]:
        """A descriptor of the folder that a path is in, open until the next call, and the last part of the path.

        Raises OSError: FileNotFoundError, or NotADirectoryError if a part of the way is a link or a file.
        """
        parent, _, name = path.rpartition("/")
        if parent != self._path or self._folder < 0:
            self.forget()
            self._folder = open_in("/", parent)
            self._path = parent
        return self._folder, name

    def look(self, path: str) -> os.stat_result | None:
        """What is there now; None if nothing is, if we may not look, or if the only way to it is through a link."""
        try:
            folder, name = self.within(path)
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None

    def open(self, path: str) -> int:
        """For reading."""
        folder, name = self.within(path)
        return os.open(name, _READ, dir_fd=folder)

    def link(self, path: str) -> str:
        folder, name = self.within(path)
        return os.readlink(name, dir_fd=folder)

    def names(self, path: str) -> list[str]:
        """What is in a folder; nothing if we may not look."""
        with suppress(OSError), using(self.open(path)) as descriptor:
            return sorted(os.listdir(descriptor))
        return []

    def count_files(self, path: str) -> int:
        """How many files are below a folder, up to a number that says enough."""
        folder, name = self.within(path)
        count = 0
        for below, inner, files, here in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
            count += len(files) + sum(_is_link(each, here) for each in inner)
            if below.count("/") >= _MAX_DEPTH:
                inner.clear()
            if count > _MAX_COUNTED:
                return _MAX_COUNTED
        return count


def is_unchanged(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    """Whether what is there is what was there."""
    if before is None or now is None:
        return before is now
    same = ("st_mode", "st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(before, field) != getattr(now, field) for field in same):
        return False
    # If it had a second name, it may be that one which is gone by now, by our own hand.
    return before.st_ctime_ns == now.st_ctime_ns or before.st_nlink > 1


def is_same_content(one: int, other: int) -> bool:
    """Whether two open files have the same bytes."""
    at = 0
    while True:
        mine, its = os.pread(one, 1 << 20, at), os.pread(other, 1 << 20, at)
        if mine != its:
            return False
        if not mine:
            return True
        at += len(mine)


def _is_link(name: str, within: int) -> bool:
    found = look(name, within)  # None: gone, or in a folder that we may list and not enter
    return found is not None and stat.S_ISLNK(found.st_mode)
