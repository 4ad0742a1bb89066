"""What is mounted where, as the kernel tells it. A file has several paths if its file system is mounted twice."""

from __future__ import annotations

import os
from typing import NamedTuple

PROC = "/proc"


class Mount(NamedTuple):
    device: str  # major:minor
    root: str  # the part of the file system that is mounted
    point: str
    kind: str
    upper: str = ""  # of an overlay: the folder that holds what is written to it


class MountTable:
    """The mounts of a process's namespace, in the order in which they were made."""

    def __init__(self, process: str = "self") -> None:
        with open(f"{PROC}/{process}/mountinfo", "rb") as table:
            lines = table.read().split(b"\n")
        self._mounts = [_parse(os.fsdecode(line)) for line in lines if line]

    def of_kind(self, *kinds: str) -> list[str]:
        """Mount points of file systems of these types."""
        return [mount.point for mount in self._mounts if mount.kind in kinds]

    def locate(self, path: str) -> tuple[str, str]:
        """The device that a path without links is on, and where there."""
        found = self._mount_of(path)
        return found.device, _joined(found.root, _rest(path, found.point))

    def _mount_of(self, path: str) -> Mount:
        found = Mount("", "", "", "")
        for mount in self._mounts:
            if _is_below(path, mount.point) and len(mount.point) >= len(
                found.point
            ):  # of equal ones the last is on top
                found = mount
        return found

    def paths_of(self, device: str, inside: str) -> list[str]:
        """Every path that leads to this place of this device, as far as nothing else is mounted over it."""
        return [
            _joined(mount.point, _rest(inside, mount.root))
            for mount in self._mounts
            if mount.device == device and _is_below(inside, mount.root)
        ]

    def other_paths(self, path: str) -> list[str]:
        """All paths that lead to the same file, this one included."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return self.paths_of(*self.locate(real))

    def parts_elsewhere(self, folder: str) -> list[tuple[str, str]]:
        """Where something that is in this folder, without links, is mounted by itself: mount point, and path in it."""
        device, inside = self.locate(folder)
        return [
            (mount.point, _joined(folder, _rest(mount.root, inside)))
            for mount in self._mounts
            if mount.device == device and mount.root != inside and _is_below(mount.root, inside)
        ]

    def beneath(self, path: str) -> str:
        """Where the content of a path without links lies if its file system is an overlay over others; else ""."""
        mount = self._mount_of(path)
        return _joined(mount.upper, _joined(mount.root, _rest(path, mount.point)).lstrip("/")) if mount.upper else ""


def _parse(line: str) -> Mount:
    fields = line.split(" ")
    dash = fields.index("-", 6)  # optional fields end with it
    kind = fields[dash + 1]
    upper = _upper(fields[dash + 3]) if kind == "overlay" and len(fields) > dash + 3 else ""
    return Mount(fields[2], _unescaped(fields[3]), _unescaped(fields[4]), kind, upper)


def _upper(options: str) -> str:
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name == "upperdir" and value.startswith("/"):
            return _unescaped(value)
    return ""


def _is_below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _rest(path: str, folder: str) -> str:
    return path.lstrip("/") if folder == "/" else path[len(folder) :].lstrip("/")


def _joined(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}/{rest}" if rest else folder


def _unescaped(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    if "\\" not in field:
        return field
    parts = field.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])
