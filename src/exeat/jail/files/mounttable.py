"""The kernel's mount table, and which mounts do not answer."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from exeat.paths import is_inside

MOUNTS = "/proc/{}/mountinfo"
# Behind these there is a program that may not answer. All of FUSE's begin with its name.
_OTHERS: Final = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "coda", "ncpfs", "virtiofs"))
_FUSE: Final = ("fuse", "fuseblk", "fuse.")
_PATIENCE_MS: Final = 5_000  # for each


class Mount(NamedTuple):
    """`root` is the part of the file system that is mounted at `point`."""

    number: str
    above: str  # the number of the mount that it is in
    device: str
    root: str
    point: str
    kind: str
    options: str


class MountTable:
    """The mounts of this process's namespace, or of another's, in the order in which they were made."""

    def __init__(self, process: int | str = "self") -> None:
        with open(MOUNTS.format(process), "rb") as table:
            self.mounts = [parse_mount(os.fsdecode(line)) for line in table.read().split(b"\n") if line]

    def of_kind(self, *kinds: str) -> list[str]:
        """Mount points of file systems of these types."""
        return [mount.point for mount in self.mounts if mount.kind in kinds]

    def points_below(self, folder: str) -> list[str]:
        """Where something is mounted in this folder, without links."""
        above = f"{folder.rstrip('/')}/"
        return [mount.point for mount in self.mounts if mount.point.startswith(above) and mount.point != folder]


def parse_mount(line: str) -> Mount:
    number, above, device, root, point, rest = line.split(" ", 5)
    kind, _, options = rest.partition(" - ")[2].split(" ", 2)  # optional fields end with the dash
    return Mount(number, above, device, unescaped(root), unescaped(point), kind, options)


def unescaped(field: str) -> str:
    """Space, tab, newline and backslash are written as octal."""
    if "\\" not in field:
        return field
    first, *parts = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)


def silent_mounts(without: Sequence[str]) -> list[str]:
    """Those that have not answered in time: a server that is gone, a program that has stopped. Raises OSError.

    A process that looks at one waits for ever. So a separate process looks at each, before anything else looks at
    files, and is left behind if it waits. Mounts in the folders `without` are skipped.
    """
    points = []
    for each in MountTable().mounts:
        is_left_out = any(is_inside(each.point, folder) for folder in without)
        if not is_left_out and (each.kind in _OTHERS or each.kind.startswith(_FUSE)):
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
    """Holds nothing open but its pipe, so that no program waits for the end of this process."""
    try:
        os.dup2(writing, 0)
        os.closerange(1, 1 << 20)
        for point in points:
            with suppress(OSError):  # if it says no, that is an answer
                os.statvfs(point)
                os.stat(point)
            os.write(0, b".")
    finally:
        os._exit(0)
