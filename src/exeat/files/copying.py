"""Copies what is in files, and only that: holes stay holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_file(
    source: int, within: int, name: str, found: os.stat_result, mode: int, took: Callable[[int], None] | None = None
) -> None:
    """Make a new file with content, times and, for root, the owner of another; and with this mode. It is on the way to
    the disk then, not there. What is left after an error is the caller's to remove."""
    target = os.open(name, _NEW, 0o600, dir_fd=within)
    try:
        copy_content(source, target, found.st_size, took)
        if os.geteuid() == 0:
            os.fchown(target, found.st_uid, found.st_gid)
        os.fchmod(target, mode)  # after the owner, whose change takes some of it away
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(target)


def copy_content(source: int, target: int, size: int, took: Callable[[int], None] | None = None) -> None:
    """Into an empty file. `took` is told of every piece, and may stop it. A file of a terabyte may have no data."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole follows
            return
        at = min(os.lseek(source, start, os.SEEK_HOLE), size)
        os.lseek(target, start, os.SEEK_SET)
        while start < at:
            done = os.sendfile(target, source, start, min(at - start, _AT_ONCE))
            if not done:
                return
            start += done
            if took is not None:
                took(done)
