"""Ownership of things at an engine: labels, and the leftovers of a crash.

What belongs to a run or a pool names the process it belongs to. When that process is gone, the next process removes
it. Nothing without such a label is ever touched, nor anything of another machine or container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError

KIND: Final = "exeat.kind"
OWNER: Final = "exeat.owner"
INSIDE: Final = "exeat.inside"
_THREADS, _STARTED = 17, 19  # of the fields behind a process's name
_ID: Final = re.compile(r"[0-9a-f]{64}")


def labels(kind: str, *, is_kept: bool = False, inside: str = "") -> dict[str, str]:
    """`is_kept`: it outlives this process on purpose. `inside`: the engine's container that this process is in."""
    if is_kept:
        return {KIND: kind}
    # Also if it is "": a container has the labels of its image, unless they are set.
    return {KIND: kind, OWNER: f"{_world()}.{os.getpid()}.{_started(os.getpid())}", INSIDE: inside}


def remove_left_over(engine: Engine) -> list[str]:
    """Containers, networks and volumes of processes that are gone. Returns what was removed."""
    removed = []
    only_ours = {"label": [OWNER]}
    found = engine.call("GET", "/containers/json", query={"all": True, "filters": only_ours})
    # Podman removes no container while there is another that shares its network.
    for container in sorted(found, key=lambda each: (each.get("Labels") or {}).get(KIND) != "helper"):
        if is_left_over(container.get("Labels") or {}, engine) and not _is_by_image(container, engine):
            removed += _remove(engine, f"/containers/{container['Id']}", {"force": True, "v": True})
    return removed


def _is_by_image(container: Mapping[str, Any], engine: Engine) -> bool:
    """Has it this owner from its image? Then it is someone else's: of a hostile image, or one committed from a run.

    Those of a build have theirs from the step before. They name this boot, which no image from elsewhere can.
    """
    found = container["Labels"]
    if found.get(KIND) == "build" and not found.get(INSIDE):
        return False
    try:
        config = engine.call("GET", f"/images/{container['ImageID']}/json").get("Config") or {}
    except NotFoundError:
        return True  # not to be told apart
    return bool((config.get("Labels") or {}).get(OWNER) == found[OWNER])


def remove_left_networks(engine: Engine) -> list[str]:
    """Of runs and pools that made some. Apart from the rest: two calls that most runs need not make."""
    removed = []
    only_ours = {"label": [OWNER]}
    for network in engine.call("GET", "/networks", query={"filters": only_ours}):
        if is_left_over(network.get("Labels") or {}, engine):
            removed += _remove(engine, f"/networks/{network['Id']}")
    for volume in (engine.call("GET", "/volumes", query={"filters": only_ours}) or {}).get("Volumes") or ():
        if is_left_over(volume.get("Labels") or {}, engine):
            removed += _remove(engine, f"/volumes/{volume['Name']}")
    return removed


def _remove(engine: Engine, path: str, query: Mapping[str, object] | None = None) -> list[str]:
    try:
        engine.call("DELETE", path, query=query)
    except EngineError:
        return []  # another run was faster, or it is being removed
    return [path]


def is_left_over(found: Mapping[str, str], engine: Engine | None = None) -> bool:
    """Whether these labels name a process of this machine that is gone, or one in a container that is."""
    world, _, process = found.get(OWNER, "").rpartition(".")[0].rpartition(".")
    started = found.get(OWNER, "").rpartition(".")[2]
    if not process.isdigit():
        return False
    if world == _world():
        return _is_gone(int(process), started)
    inside = found.get(INSIDE, "")  # whatever an image has written there
    return bool(_ID.fullmatch(inside)) and engine is not None and not _runs(engine, inside)


def _runs(engine: Engine, container: str) -> bool:
    """With a container, all processes in it are gone."""
    try:
        return bool(engine.call("GET", f"/containers/{container}/json")["State"]["Running"])
    except NotFoundError:
        return False


def _world() -> str:
    """This boot of this machine, and this PID namespace of it: elsewhere a pid means something else."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def _is_gone(pid: int, started: str) -> bool:
    """A process of another user may not be looked at (hidepid, ProtectProc). If there is one by this pid, it counts.

    One that has ended and that its parent does not wait for (process 1 of a container may not) is gone.
    """
    if fields := _stat(pid):
        has_ended = fields[0] in ("Z", "X") and fields[_THREADS] in ("0", "1")  # not its first thread alone
        return has_ended or fields[_STARTED] != started
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _started(pid: int) -> str:
    """When a process began, in ticks; "" if there is none. So that another by the same pid is not taken for it."""
    fields = _stat(pid)
    return fields[_STARTED] if fields else ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []
