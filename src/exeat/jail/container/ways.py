"""Chooses the way into the network of an engine's containers, from where exeat runs."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.find import is_in_container
from exeat.jail.container.own_container import OwnContainer, find_own_container
from exeat.values import Value

_CAP_NET_ADMIN, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 12, 19, 21
_NEEDED: Final = 1 << _CAP_NET_ADMIN | 1 << _CAP_SYS_PTRACE | 1 << _CAP_SYS_ADMIN
_ENGINES: Final = ("dockerd", "podman", "systemd")


class Name(StrEnum):
    ROOT = "root"
    USER_NAMESPACE = "user namespace"
    HELPER = "helper container"
    SIDECAR = "sidecar"


class Way(Value):
    """`why` is for a person. `own`: exeat is in a container of this engine, which sees other paths."""

    name: Name
    why: str
    own: OwnContainer | None = None
    sees_processes: bool = True  # are the engine's process numbers ours?

    @property
    def leads_to_mounts(self) -> bool:
        """Who enters the network itself can enter all else of the container."""
        return self.name in (Name.ROOT, Name.USER_NAMESPACE)


def find_way(engine: Engine) -> Way:
    """The first that is available. Raises EngineError if the engine cannot be asked."""
    pid, uid = _ask_peer(engine)
    own = find_own_container(engine) if is_in_container() else None
    if own is None and (why := _why_elsewhere(engine, pid)):
        return Way(Name.SIDECAR, why)
    if pid and os.geteuid() == 0 and _rights() & _NEEDED == _NEEDED:
        return Way(Name.ROOT, "exeat runs as root, and enters the container's network itself", own)
    if pid and uid == os.geteuid() and engine.is_rootless:
        why = f"{engine.kind} is your own, and so is the user namespace of its containers"
        return Way(Name.USER_NAMESPACE, why, own)
    whose = "the engine runs as root, and you may use it" if pid else "the engine's processes cannot be seen from here"
    return Way(Name.HELPER, f"{whose}: a short-lived container makes the network", own, bool(pid))


def _ask_peer(engine: Engine) -> tuple[int, int]:
    """Who listens at the engine's socket: pid and uid. The pid is 0 if that process cannot be seen from here."""
    pid, uid = engine.ask_peer()
    return 0 if _is_elsewhere(pid) else pid, uid


def _is_elsewhere(pid: int) -> bool:
    """Has it another PID namespace? Only root or its owner may ask."""
    try:
        return not os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid")
    except OSError:
        return False


def _why_elsewhere(engine: Engine, pid: int) -> str:
    """A socket can be forwarded. Then the engine's containers run under another kernel."""
    if not pid and is_in_container():
        return "the engine is not one of this machine, or does not know the container that exeat is in"
    try:
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() in _ENGINES:
                return ""
    except OSError:
        pass
    info, here = engine.info(), os.uname()
    if info.get("KernelVersion", here.release) != here.release or info.get("Name", here.nodename) != here.nodename:
        return f"the engine runs on another machine ({info.get('Name')})"
    return ""


def _rights() -> int:
    """The capabilities that this process has."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
