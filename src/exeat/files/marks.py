"""How an overlay says in a folder what is gone: a device 0:0 for a name, a mark on a folder for all that was in it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

# Which of the two it is, is decided by how the overlay was mounted: the first is for those who are not root.
OPAQUE: Final = ("user.overlay.opaque", "trusted.overlay.opaque")
_NO_MARK: Final = (errno.ENODATA, errno.ENOTSUP, errno.EPERM)


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def make_whiteout(name: str, within: int) -> None:
    """Anybody may make this one device (since Linux 5.8)."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=within)


def genuine_marks(folder: int) -> Sequence[str]:
    """Those that only an overlay sets in a layer, not a command. `folder` is one of ours.

    Where we may set the second, it is the overlay's, and the first is an attribute like any other. Where the first is
    the overlay's, the kernel gives the command's own another name.
    """
    probe = "trusted.overlay.exeat"
    try:
        os.setxattr(folder, probe, b"y")
        os.removexattr(folder, probe)
    except OSError:
        return OPAQUE
    return OPAQUE[1:]


def opaque_mark(folder: int, marks: Sequence[str] = OPAQUE) -> str:
    """The mark of a folder of which nothing shows but what is in this layer; "" if it has none."""
    for name in marks:
        try:
            if os.getxattr(folder, name) == b"y":
                return name
        except OSError as error:
            if error.errno not in _NO_MARK:
                raise
    return ""
