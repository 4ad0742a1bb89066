"""Checks a container's mounts from outside, while only our process 1 runs in it.

An engine finds files by their paths, as root, and follows links. A command of another run that shares a folder could
have put a link there since the mounts were chosen, to a file that neither it nor this command may read.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Sequence

from exeat.errors import JailError
from exeat.jail.container.options import Mount
from exeat.jail.files.mounttable import Mount as TableLine
from exeat.jail.files.mounttable import MountTable, parse_mount
from exeat.paths import is_below

_PEER = struct.Struct("iII")


def open_mounts(pid: int, control: socket.socket) -> tuple[int, ...]:
    """Descriptors of the namespaces to go through to process 1's mounts: of users, if it is another, and of mounts.

    Nothing if there is no way from here. `control` is the connection to process 1: its pid may be another's by now.
    """
    if _PEER.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0] != pid:
        return ()
    opened = []
    try:
        opened.append(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        if os.path.samestat(os.fstat(opened[0]), os.stat("/proc/self/ns/user")):
            os.close(opened.pop())
            if os.geteuid() != 0:
                return ()
        opened.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        if not _is_open(control):
            raise ProcessLookupError("the process may be another one by now")
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        return ()
    return tuple(opened)


def _is_open(control: socket.socket) -> bool:
    """As long as process 1 holds its end, its pid is no one else's."""
    try:
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True


def refuse_engine_in_sight(socket_path: str, mounts: Sequence[Mount]) -> None:
    """Raises JailError if the command would see the engine's socket: by it one gets out.

    Sockets that were there when the mounts were chosen are covered. An engine that we started since is not.
    """
    path = os.path.realpath(socket_path)
    covered = {mount.target for mount in mounts}
    for mount in mounts:
        if is_below(path, mount.source) and mount.target.rstrip("/") + path[len(mount.source) :] not in covered:
            raise JailError(
                "the container has a folder with the engine's socket, through which the command could get out",
                detail=f"{path} in {mount.source}",
                fix="TMPDIR or XDG_RUNTIME_DIR in a folder that is not shared",
            )


def refuse_other_mounts(pid: int, mounts: Iterable[Mount]) -> None:
    """Raises JailError if one of them is not there, or shows something else than its source, or can be written."""
    ours = MountTable().mounts
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as table:
            lines = [os.fsdecode(line) for line in table.read().split(b"\n") if line]
    except OSError as error:
        raise JailError("the container's mounts cannot be looked at", detail=str(error)) from None
    theirs = {}
    for line in lines:
        found = parse_mount(line)  # of several at one place the last is seen
        theirs[found.point] = found.device, found.root, line.split(" ", 6)[5].split(",")
    for mount in mounts:
        device, root, options = theirs.get(mount.target, ("", "", []))
        if (device, root) not in _origins(mount.source, ours):
            raise JailError(
                f"the container has another mount at {mount.target} than exeat asked for",
                detail=f"{mount.source} is {root or 'not mounted'} there",
                fix="is another program at work in this folder, or is the engine on another machine, or is there a "
                "link in the image on the way?",
            )
        if mount.read_only and "ro" not in options:
            raise JailError(f"{mount.target} is not read-only in the container", detail=mount.source)


def _origins(path: str, table: list[TableLine]) -> set[tuple[str, str]]:
    """The device and the path on it, by the innermost mount that the path is in; several may lie on each other."""
    within = [mount for mount in table if is_below(path, mount.point)]
    longest = max((len(mount.point) for mount in within), default=0)
    return {
        (mount.device, (mount.root.rstrip("/") + path[len(mount.point.rstrip("/")) :]) or "/")
        for mount in within
        if len(mount.point) == longest
    }
