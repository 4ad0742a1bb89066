"""Walking folders that others have filled, through descriptors, without following a link out of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from exeat.paths import using

STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
HANDLE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# The mark of a folder in a layer of which nothing shows but what is in that layer. Which of the two it is, is decided
# by how the overlay was mounted: the first is for those who are not root.
OPAQUE: Final = ("user.overlay.opaque", "trusted.overlay.opaque")


@contextmanager
def usual_modes() -> Iterator[None]:
    """What is made here gets the mode that is asked for. The caller's umask is for the command, and may be any."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def names_of(path: str) -> list[str]:
    """The parts of a full path. There is none of the root."""
    return [name for name in path.split("/") if name]


def open_in(tree: str, path: str, *, make: bool = False) -> int:
    """A folder in a tree that stands for the machine: nothing on the way is a link. Raises OSError.

    `make`: folders that are not there are made.
    """
    at = os.open(tree, STEP)
    for name in names_of(path):
        with using(at) as before:
            try:
                at = os.open(name, STEP, dir_fd=before)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o755, dir_fd=before)
                at = os.open(name, STEP, dir_fd=before)
    return at


def open_without_links(path: str, flags: int = HANDLE) -> int:
    """A file or folder of the machine. Raises OSError if a link is on the way: it had none when it was chosen.

    The command of another run may share a folder that it lies in.
    """
    parent, _, name = path.rpartition("/")
    with using(open_in("/", parent)) as within:
        return os.open(name or ".", flags, dir_fd=within)


def step_down(layer: str, path: str) -> tuple[int, bool]:
    """A folder in a layer, -1 if it is not there; and whether the layer hides what those below it have there.

    An overlay finds that out by itself for all folders but its own root, which is what the folder is to become.
    """
    at = os.open(layer, STEP)
    hides = False
    for name in names_of(path):
        try:
            with using(at) as before:
                at = os.open(name, STEP, dir_fd=before)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return -1, hides
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return -1, True  # removed there, or something else
            raise
        hides = hides or bool(opaque_mark(at))
    return at, hides


def is_whiteout(found: os.stat_result) -> bool:
    """How an overlay says in a layer that a name is gone: a device 0:0."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def make_whiteout(name: str, within: int) -> None:
    """Any user may make this one device (since Linux 5.8)."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=within)


def opaque_mark(folder: int, marks: Sequence[str] = OPAQUE) -> str:
    """The mark of a folder of which nothing shows but what is in this layer; "" if it has none."""
    for name in marks:
        try:
            if os.getxattr(path_of(folder), name) == b"y":
                return name
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
                raise
    return ""


def genuine_marks(folder: str | int) -> Sequence[str]:
    """Those that only an overlay sets in a layer, not a command. `folder` is one of ours.

    Where we may set the second, it is the overlay's, and the first is an attribute like any other. Where the first is
    the overlay's, the kernel renames the command's own.
    """
    return OPAQUE[1:] if can_be_marked(folder, "trusted") else OPAQUE


def can_be_marked(folder: str | int, kind: str = "user") -> bool:
    """Can it have attributes of this kind?"""
    try:
        os.setxattr(folder, f"{kind}.overlay.exeat", b"y")
        os.removexattr(folder, f"{kind}.overlay.exeat")
    except OSError:
        return False
    return True
