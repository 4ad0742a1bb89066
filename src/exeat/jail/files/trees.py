"""Paths, and folders that others have filled: how the builder finds its way without being led elsewhere by a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE: Final = ("user.overlay.opaque", "trusted.overlay.opaque")


@contextmanager
def usual_modes() -> Iterator[None]:
    """What is made here gets the mode that is asked for. The caller's umask is for the command, and may be any."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def outermost(paths: Iterable[str]) -> list[str]:
    """Without those that lie in another of them."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(is_below(path, each) for each in found):
            found.append(path)
    return found


def is_below(path: str, folder: str) -> bool:
    """Is it this folder, or in it?"""
    return folder in ("/", path) or path.startswith(f"{folder}/")


def names_of(path: str) -> list[str]:
    """The parts of a full path. There is none of the root."""
    return [name for name in path.split("/") if name]


def open_in(tree: str, path: str, *, make: bool = False) -> int:
    """A folder in a tree that stands for the machine: nothing on the way is a link. Raises OSError.

    `make`: folders that are not there are made.
    """
    at = os.open(tree, _FOLDER)
    for name in names_of(path):
        before = at
        try:
            try:
                at = os.open(name, _FOLDER, dir_fd=before)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o755, dir_fd=before)
                at = os.open(name, _FOLDER, dir_fd=before)
        finally:
            os.close(before)
    return at


def open_without_links(path: str) -> int:
    """A file or folder of the machine. Raises OSError if a link is on the way: it had none when it was chosen.

    The command of another run may share a folder that it lies in.
    """
    parent, _, name = path.rpartition("/")
    within = open_in("/", parent)
    try:
        return os.open(name or ".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    finally:
        os.close(within)


def step_down(layer: str, path: str) -> tuple[int, bool]:
    """A folder in a layer, -1 if it is not there; and whether the layer hides what those below it have there.

    An overlay finds that out by itself for all folders but its own root, which is what the folder is to become.
    """
    at = os.open(layer, _FOLDER)
    hides = False
    for name in names_of(path):
        before = at
        try:
            at = os.open(name, _FOLDER, dir_fd=before)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return -1, hides
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return -1, True  # removed there, or something else
            raise
        finally:
            os.close(before)
        hides = hides or _is_opaque(at)
    return at, hides


def _is_opaque(folder: int) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(f"/proc/self/fd/{folder}", name) == b"y":
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
                raise
    return False
