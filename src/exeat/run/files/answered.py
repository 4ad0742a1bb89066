"""Answers of the machine as they are passed on while they are noted: they tell nothing that is not compared later."""

from __future__ import annotations

import os
import stat
from typing import Final, Self

FOLDER: Final = "d"
FILE: Final = "f"
LINK: Final = "l"
OTHER: Final = "?"


class Seen:
    """Of a result of `stat`, what is compared. To ask it for more is an error."""

    __slots__ = ("st_dev", "st_gid", "st_ino", "st_mode", "st_nlink", "st_rdev", "st_uid")

    def __init__(self, found: os.stat_result) -> None:
        self.st_mode, self.st_ino, self.st_dev, nlink, self.st_uid, self.st_gid = found[:6]
        if not stat.S_ISDIR(self.st_mode):  # that of a folder changes with what is made in it
            self.st_nlink, self.st_rdev = nlink, found.st_rdev


class SeenSystem:
    """Of a result of `statvfs`."""

    __slots__ = ("f_flag",)

    def __init__(self, flags: int) -> None:
        self.f_flag = flags


class SeenEntry:
    """Of a folder. What it is can be asked for without its name."""

    __slots__ = ("_folder", "_kind", "_name", "_named")

    def __init__(self, folder: str, name: str, kind: str, named: set[str]) -> None:
        self._folder, self._name, self._kind, self._named = folder, name, kind, named

    @property
    def name(self) -> str:
        self._named.add(self._kind)
        return self._name

    @property
    def path(self) -> str:
        return os.path.join(self._folder, self.name)

    def is_symlink(self) -> bool:
        return self._kind == LINK

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) if follow_symlinks and self._kind == LINK else self._kind == FOLDER

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) if follow_symlinks and self._kind == LINK else self._kind == FILE


class Listed:
    """A folder that was listed. `named`: kinds of entries of which a name was asked for.

    Of other kinds that it has, more or fewer make no difference: a project has new files all the time.
    """

    __slots__ = ("kinds", "named")

    def __init__(self, kinds: dict[str, str]) -> None:
        self.kinds = kinds
        self.named: set[str] = set()

    def is_like(self, now: dict[str, str]) -> bool:
        if now == self.kinds:
            return True
        unnamed = {*self.kinds.values()} - self.named
        return _without(self.kinds, unnamed) == _without(now, unnamed)


class SeenFolder:
    """What `scandir` returns."""

    def __init__(self, path: str, listed: Listed) -> None:
        self._listed = listed
        self._entries = iter([SeenEntry(path, name, kind, listed.named) for name, kind in listed.kinds.items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """If not all were looked at, which ones were depends on what else there is."""
        if next(self._entries, None) is not None:
            self._listed.named.update(self._listed.kinds.values())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SeenEntry:
        return next(self._entries)


def _without(kinds: dict[str, str], left_out: set[str]) -> dict[str, str]:
    return {name: kind for name, kind in kinds.items() if kind not in left_out}
