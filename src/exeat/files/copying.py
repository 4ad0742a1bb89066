"""Copies what is in files, and only that: holes stay holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 1 << 20


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
