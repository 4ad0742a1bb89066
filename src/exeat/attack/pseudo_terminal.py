"""A terminal for the caller of a jailed command, and a reader of what gets typed into it."""

from __future__ import annotations

import contextlib
import os
import select
import tty
from collections.abc import Callable, Iterator

_QUIET_S = 0.1


@contextlib.contextmanager
def open_terminal(typed: Callable[[bytes], None]) -> Iterator[int]:
    """The terminal's descriptor. At the end, what a shell would now read from it is handed to `typed`."""
    leader, follower = os.openpty()
    tty.setraw(follower)
    try:
        yield follower
        while select.select([follower], [], [], _QUIET_S)[0]:
            data = os.read(follower, 65536)
            if not data:
                break
            typed(data)
    finally:
        os.close(leader)
        os.close(follower)
