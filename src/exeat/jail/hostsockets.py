"""Which Unix sockets the host has, by path: each is a way out of the jail, to a program that is not in it.

Abstract ones belong to a network namespace and stay outside by themselves. Paths do not.
"""

from __future__ import annotations

import os
import stat

_PROC = "/proc"


def bound_paths() -> list[str]:
    """Paths of all sockets that somebody has bound, in every network namespace that we may look into."""
    found: dict[str, None] = {}
    relative: dict[str, str] = {}  # inode of a socket that was bound by a relative path -> that path
    namespaces = set()
    processes = [name for name in os.listdir(_PROC) if name.isdigit()]
    for process in ("self", *processes):
        try:
            namespace = os.stat(f"{_PROC}/{process}/net/unix").st_ino  # ns/net would be the owner's to read only
            if namespace in namespaces:
                continue
            namespaces.add(namespace)
            with open(f"{_PROC}/{process}/net/unix", errors="surrogateescape") as table:
                lines = table.read().splitlines()[1:]
        except OSError:
            continue  # gone, or hidden from us (hidepid)
        for line in lines:
            fields = line.split(" ", 7) if "  " not in line else line.split(None, 7)
            if len(fields) < 8 or fields[7].startswith("@"):
                continue
            path = fields[7]
            if path.startswith("/"):
                found[path] = None
            else:
                relative[fields[6].strip()] = path
    if relative:
        found.update(dict.fromkeys(_absolute(relative, processes)))
    return list(found)


def _absolute(relative: dict[str, str], processes: list[str]) -> list[str]:
    """Where relative paths lead: below the working directory of a process that holds the socket."""
    found = []
    for process in processes:
        try:
            cwd = os.readlink(f"{_PROC}/{process}/cwd")
            descriptors = os.listdir(f"{_PROC}/{process}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"{_PROC}/{process}/fd/{descriptor}")
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in relative:
                found.append(os.path.normpath(os.path.join(cwd, relative[target[8:-1]])))
    return found


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


class MountTable:
    """The mounts of this namespace. One file can be reached by several paths if its file system is mounted twice."""

    def __init__(self) -> None:
        self._mounts: list[tuple[str, str, str]] = []  # device, root within it, where it is mounted
        with open(f"{_PROC}/self/mountinfo", errors="surrogateescape") as table:
            for line in table:
                fields = line.split(" ")
                self._mounts.append((fields[2], _unescaped(fields[3]), _unescaped(fields[4])))

    def below(self, folder: str) -> list[str]:
        """Mount points at or below a folder."""
        return [point for _, _, point in self._mounts if point == folder or point.startswith(f"{folder}/")]

    def other_paths(self, path: str) -> list[str]:
        """Further paths that lead to the same file through other mounts of its file system."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        device, root, point = "", "", ""
        for each_device, each_root, each_point in self._mounts:
            if _is_below(real, each_point) and len(each_point) >= len(point):  # of equal ones the last is on top
                device, root, point = each_device, each_root, each_point
        inside = _joined(root, _rest(real, point))
        return [
            _joined(each_point, _rest(inside, each_root))
            for each_device, each_root, each_point in self._mounts
            if each_device == device and _is_below(inside, each_root)
        ]


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
