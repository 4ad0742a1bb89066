"""What is mounted where, as the kernel tells it."""

from __future__ import annotations

import os
from typing import NamedTuple


class Mount(NamedTuple):
    point: str
    kind: str


class MountTable:
    """The mounts of this process's namespace, in the order in which they were made."""

    def __init__(self) -> None:
        with open("/proc/self/mountinfo", "rb") as table:
            self.mounts = [parse_mount(os.fsdecode(line)) for line in table.read().split(b"\n") if line]

    def of_kind(self, *kinds: str) -> list[str]:
        """Mount points of file systems of these types."""
        return [mount.point for mount in self.mounts if mount.kind in kinds]

    def points_below(self, folder: str) -> list[str]:
        """Where something is mounted in this folder, without links."""
        above = f"{folder.rstrip('/')}/"
        return [mount.point for mount in self.mounts if mount.point.startswith(above) and mount.point != folder]


def parse_mount(line: str) -> Mount:
    fields = line.split(" ")
    return Mount(_unescaped(fields[4]), fields[fields.index("-", 6) + 1])  # optional fields end with the dash


def _unescaped(field: str) -> str:
    """Space, tab, newline and backslash are written as octal."""
    if "\\" not in field:
        return field
    parts = field.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])
