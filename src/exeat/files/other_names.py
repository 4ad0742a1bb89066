"""Other paths of a hidden file: where its file system, or a part of it, is mounted a second time, or lies beneath."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from exeat.files.places import is_below

MOUNTS = "/proc/self/mountinfo"
_OF_KERNEL = ("proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "nsfs", "securityfs", "tracefs", "debugfs")


class Mount:
    """`root` is the part of the file system that is mounted at `point`. `layers`: what an overlay is made of."""

    __slots__ = ("above", "device", "kind", "layers", "number", "point", "root")

    def __init__(self, line: str) -> None:
        self.number, self.above, self.device, root, point, rest = line.split(" ", 5)
        self.root = _unescaped(root)
        self.point = _unescaped(point)
        self.kind, _, options = rest.partition(" - ")[2].split(" ", 2)
        self.layers = _layers(options) if self.kind == "overlay" else []


class OtherNames:
    """Answers from the mount table as it was when this was made."""

    def __init__(self) -> None:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().split("\n")
        mounts = _in_sight([Mount(line) for line in lines if line])
        devices = [mount.device for mount in mounts if mount.kind not in _OF_KERNEL]
        self._often = {device for device in devices if devices.count(device) > 1}
        self._has_layers = any(mount.layers for mount in mounts)
        # Of several at one point the last is on top. The longest point that a path begins with is where it is.
        self._points = {mount.point: mount for mount in mounts}
        self._mounts = sorted(self._points.values(), key=lambda each: -len(each.point))
        self._held: dict[str, Mount | None] = {}

    def of(self, path: str) -> Iterator[str]:
        """Where else this file or folder, or a part of the folder, can be found. The path is without links."""
        if not self._often and not self._has_layers:
            return
        yield from self._of_one(path)
        for mount in self._mounts:
            if mount.point != path and is_below(mount.point, path):
                yield from (other for other in self._of_one(mount.point) if not is_below(other, path))

    def _of_one(self, path: str) -> Iterator[str]:
        own = self._points.get(path) or self._holding(path.rpartition("/")[0] or "/")
        if own is None:
            return
        inside = _under(own.root, path[len(own.point.rstrip("/")) :])
        for layer in own.layers:
            if os.path.lexists(beneath := _under(layer, inside)):
                yield beneath
        if own.device not in self._often:
            return
        for mount in self._mounts:
            if mount is own or mount.device != own.device:
                continue
            if is_below(inside, mount.root):
                other = _under(mount.point, inside[len(mount.root.rstrip("/")) :])
                if _are_same(path, other):
                    yield other
            elif is_below(mount.root, inside):
                yield mount.point

    def _holding(self, folder: str) -> Mount | None:
        if folder not in self._held:
            self._held[folder] = next((mount for mount in self._mounts if is_below(folder, mount.point)), None)
        return self._held[folder]


def _in_sight(mounts: list[Mount]) -> list[Mount]:
    """Without those that a later mount hides, at a folder above theirs."""
    points = {(mount.above, mount.point) for mount in mounts}
    hidden: set[str] = set()
    for mount in mounts:  # each comes after the one that it is in
        folder = mount.point
        while folder != "/" and mount.number not in hidden:
            folder = folder.rpartition("/")[0] or "/"
            if mount.above in hidden or (folder != mount.point and (mount.above, folder) in points):
                hidden.add(mount.number)
    return [mount for mount in mounts if mount.number not in hidden]


def _layers(options: str) -> list[str]:
    """Those that can be seen from here, which in a container is none: the paths are those of whoever mounted it."""
    found = []
    for option in re.split(r"(?<!\\),", _unescaped(options)):
        name, _, value = option.partition("=")
        if name == "upperdir" or name.startswith("lowerdir"):
            found += [re.sub(r"\\(.)", r"\1", each) for each in re.split(r"(?<!\\):", value)]
    return [each.rstrip("/") for each in found if each.startswith("/") and os.path.isdir(each)]


def _unescaped(field: str) -> str:
    """Space, tab, newline and backslash are written as octal numbers."""
    if "\\" not in field:
        return field
    first, *parts = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)


def _under(folder: str, rest: str) -> str:
    return (folder.rstrip("/") + rest) or "/"


def _are_same(path: str, other: str) -> bool:
    """Something else may be mounted on the way to the other."""
    try:
        one, two = os.lstat(path), os.lstat(other)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG  # who goes step by step gets there; to hide it will fail
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
