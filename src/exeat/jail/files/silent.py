"""Mounts that do not answer: a server that is gone, a program that has stopped. Whoever looks at one waits for ever.

A process of its own looks at each, and is left behind where it waits. Before anything else looks at files.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from typing import Final

from exeat.jail.files.mounttable import MountTable

# Behind these there is somebody who may not answer. All of FUSE's begin with its name.
_OTHERS: Final = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "coda", "ncpfs", "virtiofs"))
_FUSE: Final = ("fuse", "fuseblk", "fuse.")
_PATIENCE_MS: Final = 5_000  # for each


def silent_mounts(without: Sequence[str]) -> list[str]:
    """Those that have not answered in time. What is in the folders `without` is not asked. Raises OSError."""
    points = []
    for each in MountTable().mounts:
        is_kept = any(each.point.startswith(f"{folder}/") for folder in without)
        if not is_kept and (each.kind in _OTHERS or each.kind.startswith(_FUSE)):
            points.append(each.point)
    silent = []
    while points:
        answered = _ask(points)
        silent += points[answered : answered + 1]
        points = points[answered + 1 :]
    return silent


def _ask(points: list[str]) -> int:
    """How many of them have answered before the first that did not."""
    reading, writing = os.pipe()
    asking = os.fork()
    if asking == 0:
        _look(points, writing)
    os.close(writing)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    count = 0
    try:
        while count < len(points) and poll.poll(_PATIENCE_MS):
            said = os.read(reading, len(points))
            if not said:
                break
            count += len(said)
        return count
    finally:
        os.close(reading)
        os.kill(asking, signal.SIGKILL)
        os.waitpid(asking, 0 if count == len(points) else os.WNOHANG)  # it may never end


def _look(points: list[str], writing: int) -> None:
    """Holds nothing open but its pipe, so that nobody waits for the end of this process."""
    try:
        os.dup2(writing, 0)
        os.closerange(1, 1 << 20)
        for point in points:
            try:
                os.statvfs(point)
                os.stat(point)
            except OSError:
                pass  # it says no, and that is an answer
            os.write(0, b".")
    finally:
        os._exit(0)
