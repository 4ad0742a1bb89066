"""Which Unix sockets the host has, by path: each is a way out of the jail, to a program that is not in it.

Abstract ones belong to a network namespace and stay outside by themselves. Paths do not. The kernel tells the name that
a socket was bound under, which need not be where it is: it may have been renamed or linked since (OpenSSH does so), or
bound by a relative path, or in another mount namespace. So names are only the beginning: every folder that one of them
points to, and every folder where programs like to put sockets, is searched, and whatever is a socket there counts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from exeat.jail.mounttable import PROC, MountTable
from exeat.jail.unixdiag import bound_inodes

# address, reference count, protocol, flags, type, state, inode, and then the name with whatever it contains
_LINE = re.compile(
    rb"[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} [0-9A-F]{2} +(\d+)(?: (.*))?", re.DOTALL
)
_NEXT_LINE = re.compile(rb"\n(?=[0-9a-f]{8,16}: [0-9A-F]{8} )")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_IN_HOME = ("", ".ssh", ".gnupg", ".docker/run", ".docker/desktop", ".config", ".cache", ".local/share")
_MAX_ENTRIES = 20_000
_MAX_SUBFOLDERS = 512
_MAX_NEAR, _MAX_BELOW = 128, 16
_MAX_WALKED = 20_000
_INODE_BITS = 0xFFFFFFFF  # what the kernel tells of an inode's number


def find_sockets(home: str, cwd: str, uid: int) -> list[str]:
    """Paths of all host sockets that can be found. To be called before the jail's namespaces are entered."""
    names = bound_paths()
    names += _seen_from_other_mounts(names)
    folders = {os.path.realpath(os.path.dirname(name)) for name in names}
    folders.update(os.path.realpath(folder) for folder in _likely_folders(home, cwd))
    named = {name for name in names if is_socket(name)}
    found = set(named)
    for folder in folders:
        found.update(_sockets_in(folder))
    bound = bound_inodes()
    if bound is None:
        return list(found)  # the kernel cannot tell which of them are in use: all may be
    missing = bound - {inode & _INODE_BITS for path in found if (inode := _inode_of_socket(path))}
    if missing:
        found.update(_walk_for(missing, (cwd, home, *_TEMPORARY)))
    return [path for path in found if path in named or _may_be_in_use(path, bound, uid)]


def _may_be_in_use(path: str, bound: set[int], uid: int) -> bool:
    """Not a file that the caller's own programs have left behind: they must be able to remove and replace it.

    A stranger's socket may be bound in a network namespace that we cannot look into.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_ino & _INODE_BITS in bound or found.st_uid != uid


def _walk_for(inodes: set[int], roots: Iterable[str]) -> list[str]:
    """Sockets with these inodes, wherever they were moved to below the roots, as far as a short walk finds them."""
    found: list[str] = []
    seen: set[str] = set()
    left = _MAX_WALKED
    waiting = [os.path.realpath(root) for root in roots]
    while waiting and left > 0 and len(found) < len(inodes):
        folder = waiting.pop(0)  # level by level: what matters is near
        if folder in seen:
            continue
        seen.add(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.inode() & _INODE_BITS in inodes and is_socket(entry.path):
                        found.append(entry.path)
        except OSError:
            continue
    return found


def bound_paths() -> list[str]:
    """Names of all sockets that somebody has bound, in every network namespace that we may look into."""
    found: dict[str, None] = {}
    relative: dict[str, str] = {}  # inode of a socket that was bound by a relative path -> that path
    tables = set()
    processes = [name for name in os.listdir(PROC) if name.isdigit()]
    for process in ("self", *processes):
        try:
            with open(f"{PROC}/{process}/net/unix", "rb") as table:
                namespace = os.fstat(table.fileno()).st_ino  # ns/net would be the owner's to read only
                if namespace in tables:
                    continue
                tables.add(namespace)
                data = table.read()
        except OSError:
            continue  # gone, or hidden from us (hidepid)
        for inode, name in _parse_table(data):
            if name.startswith("/") and not name.startswith("/proc/"):
                found[name] = None
            else:
                relative[inode] = name
    if relative:
        found.update(dict.fromkeys(_absolute(relative, processes)))
    return list(found)


def _parse_table(data: bytes) -> list[tuple[str, str]]:
    """Inode and name of every socket that has a name on disk. A name may hold any byte, line ends too."""
    found = []
    for line in _NEXT_LINE.split(data.removesuffix(b"\n"))[1:]:
        parsed = _LINE.fullmatch(line)
        if parsed is not None and parsed[2] and not parsed[2].startswith(b"@"):
            found.append((parsed[1].decode(), os.fsdecode(parsed[2])))
    return found


def _absolute(relative: dict[str, str], processes: list[str]) -> list[str]:
    """Where relative paths lead, and those by way of /proc/self: it depends on the process that holds the socket."""
    found = []
    for process in processes:
        try:
            cwd = os.readlink(f"{PROC}/{process}/cwd")
            descriptors = os.listdir(f"{PROC}/{process}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"{PROC}/{process}/fd/{descriptor}")
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in relative:
                name = relative[target[8:-1]].replace("/proc/self/", f"{PROC}/{process}/", 1)
                found.append(
                    os.path.join(os.path.realpath(os.path.join(cwd, os.path.dirname(name))), os.path.basename(name))
                )
    return found


def _seen_from_other_mounts(names: Iterable[str]) -> list[str]:
    """Our paths for names that processes of other mount namespaces (containers) have bound on shared folders."""
    own = os.readlink(f"{PROC}/self/ns/mnt")
    here = MountTable()
    found: dict[str, None] = {}
    seen = {own}
    for process in os.listdir(PROC):
        if not process.isdigit():
            continue
        try:
            namespace = os.readlink(f"{PROC}/{process}/ns/mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            there = MountTable(process)
        except (OSError, ValueError):
            continue  # not ours to look at; then it is not ours to have started either
        for name in names:
            found.update(dict.fromkeys(here.paths_of(*there.locate(os.path.normpath(name)))))
    return [path for path in found if is_socket(path)]


def _likely_folders(home: str, cwd: str) -> list[str]:
    temporary = {*_TEMPORARY, os.environ.get("TMPDIR") or _TEMPORARY[0]}
    folders = [*temporary, cwd, *(os.path.join(home, name) for name in _IN_HOME)]
    for folder in temporary:
        folders += _subfolders(folder)
    # A container may have a folder of the project for its sockets.
    for folder in _subfolders(cwd)[:_MAX_NEAR]:
        folders += [folder, *_subfolders(folder)[:_MAX_BELOW]]
    return folders


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)][:_MAX_SUBFOLDERS]
    except OSError:
        return []


def _sockets_in(folder: str) -> list[str]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                # The kind is in the directory itself: this costs no system call per entry.
                common = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                if not (common or entry.is_symlink()) and is_socket(entry.path):
                    found.append(entry.path)
                if count > _MAX_ENTRIES:
                    break
    except OSError:
        pass  # not there, or not readable: then it is not readable inside either
    return found


def _inode_of_socket(path: str) -> int:
    """Its inode; 0 if there is no socket at this path, or none any more."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return 0
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else 0


def is_socket(path: str) -> bool:
    return _inode_of_socket(path) != 0
