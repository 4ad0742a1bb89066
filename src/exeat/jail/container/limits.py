"""Limits that an engine cannot enforce: reported, or refused if the user asked for them."""

from __future__ import annotations

import os
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.jail.container.options import MEMORY, PIDS, ContainerOptions

_GROUPS: Final = "/sys/fs/cgroup"
_FIX: Final = (
    "Podman as root, Docker, or a system with control groups of version 2 only (systemd.unified_cgroup_hierarchy=1)"
)


def check_limits(engine: Engine, options: ContainerOptions) -> str:
    """A sentence about those that there are by default and the engine cannot hold; "" if all can. Raises EngineError.

    An engine that is root's has all of them. Others accept them and do nothing.
    """
    if engine.kind == "docker" and not _is_own_docker(engine):
        return ""
    missing = _missing(engine)
    asked = {"--memory": options.memory != MEMORY, "--pids": options.pids != PIDS, "--cpus": options.cpus > 0}
    refused = [name for name, is_asked in asked.items() if is_asked and name in missing]
    if refused:
        raise EngineError(
            f"{engine.kind} cannot limit that here: {', '.join(refused)}",
            detail="without root, an engine has only those control groups that the system has given to its user",
            fix=_FIX,
        )
    words = {"--memory": "memory", "--pids": "processes"}
    told = [word for name, word in words.items() if name in missing]
    if not told:
        return ""
    return f"{engine.kind} without root cannot limit {' and '.join(told)} here: the container can use up the machine's"


def _is_own_docker(engine: Engine) -> bool:
    """Asked of those who could have one: the question takes as long as making a container."""
    return "/run/user/" in engine.where and engine.is_rootless


def _missing(engine: Engine) -> set[str]:
    if not engine.is_rootless:
        return set()
    if engine.kind == "docker":
        info = engine.info()
        fields = {"--memory": "MemoryLimit", "--pids": "PidsLimit", "--cpus": "CpuCfsQuota"}
        return {name for name, field in fields.items() if not info.get(field)}
    has = _own_groups(engine.ask_peer()[1])
    if has is None:
        host = _ask_podman(engine)
        has = host.get("cgroupControllers") or [] if host.get("cgroupVersion") == "v2" else []
    return {
        name for name, group in {"--memory": "memory", "--pids": "pids", "--cpus": "cpu"}.items() if group not in has
    }


def _own_groups(uid: int) -> list[str] | None:
    """What the kernel lets this user limit, where systemd keeps it; None: elsewhere. Podman takes a second for it."""
    if not os.path.exists(f"{_GROUPS}/cgroup.controllers"):
        return []  # control groups of version 1
    try:
        with open(f"{_GROUPS}/user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers") as file:
            return file.read().split()
    except OSError:
        return None


def _ask_podman(engine: Engine) -> dict[str, Any]:
    """What it says in its own API. In Docker's it names what the machine has, not what it may use."""
    found: dict[str, Any] = engine.call("GET", "/v4.0.0/libpod/info").get("host") or {}
    return found
