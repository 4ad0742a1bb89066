"""Removes whole folders, through descriptors: a name that is turned into a link meanwhile leads nowhere else."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

# One descriptor is open for each folder on the way down.
MAX_DEPTH = 200

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(within: int, name: str) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there. Raises OSError.

    Stops at what is on another file system, and at folders nested deeper than any of ours.
    """
    try:
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=within)
        return
    way: list[_Level] = []
    try:
        way.append(_enter(within, name, found.st_dev))
        while way:
            here = way[-1]
            if here.inner:
                if len(way) > MAX_DEPTH:
                    raise OSError(errno.ELOOP, "folders are nested too deeply", here.inner[-1])
                way.append(_enter(here.descriptor, here.inner.pop(), found.st_dev))
            else:
                os.rmdir(here.name, dir_fd=way[-2].descriptor if len(way) > 1 else within)
                os.close(way.pop().descriptor)
    finally:
        for level in way:
            os.close(level.descriptor)


class _Level(NamedTuple):
    name: str
    descriptor: int
    inner: list[str]  # folders that are still in it


def _enter(within: int, name: str, device: int) -> _Level:
    """Open a folder and remove all that is not a folder from it."""
    descriptor = os.open(name, _DIRECTORY, dir_fd=within)
    try:
        inner = []
        for each in os.listdir(descriptor):
            found = os.stat(each, dir_fd=descriptor, follow_symlinks=False)
            if found.st_dev != device:
                raise OSError(errno.EXDEV, "another file system is mounted there", each)
            if stat.S_ISDIR(found.st_mode):
                inner.append(each)
            else:
                os.unlink(each, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return _Level(name, descriptor, inner)
