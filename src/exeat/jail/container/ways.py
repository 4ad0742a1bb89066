"""Which way leads into the network of an engine's containers, from where exeat runs."""

from __future__ import annotations

import os
import socket
import struct
from enum import StrEnum
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.find import is_in_container
from exeat.jail.container.own_container import OwnContainer, find_own_container
from exeat.values import Value

_PEER: Final = struct.Struct("iII")
_CAP_NET_ADMIN, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 12, 19, 21
_NEEDED: Final = 1 << _CAP_NET_ADMIN | 1 << _CAP_SYS_PTRACE | 1 << _CAP_SYS_ADMIN
_ENGINES: Final = ("dockerd", "podman", "systemd")


class Name(StrEnum):
    ROOT = "root"
    USER_NAMESPACE = "user namespace"
    HELPER = "helper container"
    SIDECAR = "sidecar"


class Way(Value):
    """`why` is for a person. `own`: exeat is in a container of this engine, which sees other paths and processes."""

    name: Name
    why: str
    own: OwnContainer | None = None


def find_way(engine: Engine) -> Way:
    """The first that can be had. Raises EngineError if the engine cannot be asked."""
    pid, uid = _ask_peer(engine)
    own = find_own_container(engine) if is_in_container() else None
    if own is None and (why := _why_elsewhere(engine, pid)):
        return Way(Name.SIDECAR, why)
    if pid and os.geteuid() == 0 and _rights() & _NEEDED == _NEEDED:
        return Way(Name.ROOT, "exeat runs as root, and enters the container's network itself", own)
    if pid and uid == os.geteuid() and engine.is_rootless:
        why = f"{engine.kind} is your own, and so is the user namespace of its containers"
        return Way(Name.USER_NAMESPACE, why, own)
    whose = "exeat is in a container itself" if own is not None else "the engine is root's, and you may talk to it"
    return Way(Name.HELPER, f"{whose}: a short-lived container does it", own)


def _ask_peer(engine: Engine) -> tuple[int, int]:
    """Who listens at the engine's socket: pid and uid. The pid is 0 if that process cannot be seen from here."""
    connection = engine.connect()
    try:
        pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    finally:
        connection.close()
    return pid, uid


def _why_elsewhere(engine: Engine, pid: int) -> str:
    """A socket can be forwarded. Then the engine's containers run under another kernel."""
    if not pid:
        return "the engine is not one of this machine, or does not know the container that exeat is in"
    try:
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() in _ENGINES:
                return ""
    except OSError:
        pass
    info = engine.info()
    if info.get("KernelVersion") != os.uname().release or info.get("Name") != os.uname().nodename:
        return f"the engine runs on another machine ({info.get('Name')})"
    return ""


def _rights() -> int:
    """The capabilities that this process has."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
