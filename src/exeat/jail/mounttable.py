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
    layers: tuple[str, ...] = ()  # of an overlay: the folders that it is made of, the one that is written to first
    number: int = 0


class MountTable:
    """The mounts of a process's namespace, in the order in which they were made."""

    def __init__(self, process: str = "self") -> None:
        with open(f"{PROC}/{process}/mountinfo", "rb") as table:
            lines = table.read().split(b"\n")
        self._is_own = process == "self"
        self.mounts = [_parse(os.fsdecode(line)) for line in lines if line]

    def of_kind(self, *kinds: str) -> list[str]:
        """Mount points of file systems of these types."""
        return [mount.point for mount in self.mounts if mount.kind in kinds]

    def locate(self, path: str) -> tuple[str, str]:
        """The device that a path without links is on, and where there."""
        found = self._mount_of(path)
        return found.device, _joined(found.root, _rest(path, found.point))

    def points_below(self, folder: str) -> list[str]:
        """Where something is mounted in this folder, without links."""
        return [mount.point for mount in self.mounts if mount.point != folder and _is_below(mount.point, folder)]

    def _mount_of(self, path: str) -> Mount:
        number = _number_of_mount(path) if self._is_own else 0  # a deeper one may be hidden by one that came later
        for mount in self.mounts:
            if number and mount.number == number:
                return mount
        found = Mount("", "", "", "")
        for mount in self.mounts:
            if _is_below(path, mount.point) and len(mount.point) >= len(
                found.point
            ):  # of equal ones the last is on top
                found = mount
        return found

    def paths_of(self, device: str, inside: str) -> list[str]:
        """Every path that leads to this place of this device, as far as nothing else is mounted over it."""
        return [
            _joined(mount.point, _rest(inside, mount.root))
            for mount in self.mounts
            if mount.device == device and _is_below(inside, mount.root)
        ]

    def other_paths(self, path: str) -> list[str]:
        """All paths that lead to the same file, this one included."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return self.paths_of(*self.locate(real))

    def every_path(self, path: str, layers: int = 8) -> list[str]:
        """As `other_paths`, and those that lead to it in the layers of an overlay."""
        found = self.other_paths(path)
        for beneath in self.beneath(path) if layers else ():
            if os.path.lexists(beneath):
                found += self.every_path(os.path.realpath(beneath), layers - 1)
        return found

    def parts_elsewhere(self, folder: str) -> list[tuple[str, str]]:
        """Where something that is in this folder, without links, is mounted by itself: mount point, and path in it."""
        device, inside = self.locate(folder)
        return [
            (mount.point, _joined(folder, _rest(mount.root, inside)))
            for mount in self.mounts
            if mount.device == device and mount.root != inside and _is_below(mount.root, inside)
        ]

    def beneath(self, path: str) -> list[str]:
        """Where the content of a path without links may lie if its file system is an overlay over others."""
        mount = self._mount_of(path)
        inside = _joined(mount.root, _rest(path, mount.point)).lstrip("/")
        return [_joined(layer, inside) for layer in mount.layers]


def _parse(line: str) -> Mount:
    fields = line.split(" ")
    dash = fields.index("-", 6)  # optional fields end with it
    kind = fields[dash + 1]
    layers = _layers(fields[dash + 3]) if kind == "overlay" and len(fields) > dash + 3 else ()
    return Mount(fields[2], _unescaped(fields[3]), _unescaped(fields[4]), kind, layers, int(fields[0]))


def _layers(options: str) -> tuple[str, ...]:
    import re  # noqa: PLC0415 - for machines with overlays

    found: list[str] = []
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name == "upperdir":
            found.insert(0, _unescaped(value))
        elif name == "lowerdir":
            # Between layers there is a colon, before those with data only two. One in a name has a backslash before it.
            layers = re.split(r"(?<!\\)::?", _unescaped(value))
            found += [re.sub(r"\\(.)", r"\1", layer) for layer in layers]
        elif name in ("lowerdir+", "datadir+"):
            found.append(_unescaped(value))
    return tuple(layer for layer in found if layer.startswith("/"))


def _number_of_mount(path: str) -> int:
    """As the kernel numbers it in the table; 0 if there is nothing at this path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        with open(f"{PROC}/self/fdinfo/{descriptor}", "rb") as file:
            return int(file.read().partition(b"mnt_id:")[2].split(b"\n", 1)[0])
    except (OSError, ValueError):
        return 0
    finally:
        os.close(descriptor)


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
