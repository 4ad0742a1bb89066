"""Chooses an engine, or says why there is none."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError

KINDS: Final = ("docker", "podman")
# What a container made by Docker or Podman has in its root.
_SIGNS_OF_CONTAINER: Final = ("/.dockerenv", "/run/.containerenv")
_OF_ENGINES: Final = (
    "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
)  # fmt: skip
_REMOTE: Final = ("tcp://", "ssh://", "http://", "https://", "npipe://", "fd://")


def open_engine(kind: str = "") -> Engine:
    """The engine that was asked for, or the first that is there. Raises EngineError."""
    kind = kind or os.environ.get("EXEAT_ENGINE", "")
    if kind and kind not in KINDS:
        raise EngineError(f"{kind!r} is not an engine that exeat knows", fix="--engine docker or --engine podman")
    for each in (kind,) if kind else KINDS:
        if named := _named(each):
            return Engine(named, each)
    refused: EngineError | None = None
    for each in (kind,) if kind else KINDS:
        for path in _usual_sockets(each):
            if not _is_socket(path):
                continue
            if os.access(path, os.R_OK | os.W_OK):
                return Engine(path, each)
            refused = refused or explain_no_socket(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    if kind != "docker" and (program := _find_program("podman")):
        from exeat.engine.own_service import start_podman  # for those who have no socket

        return start_podman(program)
    raise refused or _no_engine(kind)


def _named(kind: str) -> str:
    """What the usual variables say. A Docker client listens to one, Podman's to the other."""
    variable = "DOCKER_HOST" if kind == "docker" else "CONTAINER_HOST"
    value = os.environ.get(variable, "")
    if not value:
        return ""
    if value.startswith("unix://"):
        return value.removeprefix("unix://")
    if value.startswith(_REMOTE):
        raise EngineError(
            f"{variable} names an engine on another machine",
            detail=value.split("@")[-1],
            fix=f"an engine of this machine: {variable}=unix:///var/run/docker.sock; or forward its socket with ssh -L",
        )
    raise EngineError(f"{variable} is not understood", detail=value, fix=f"{variable}=unix:///PATH")


def _usual_sockets(kind: str) -> list[str]:
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if kind == "docker":
        return [f"{own}/docker.sock", "/var/run/docker.sock"]
    return [f"{own}/podman/podman.sock", *(["/run/podman/podman.sock"] if os.geteuid() == 0 else [])]


def every_socket() -> list[str]:
    """Where engines may listen on this machine, whichever is used. Who gets at one is out of any jail."""
    named = [os.environ.get(name, "") for name in ("DOCKER_HOST", "CONTAINER_HOST")]
    return [
        *(value.removeprefix("unix://") for value in named if value.startswith("unix://")),
        *_usual_sockets("docker"),
        *_usual_sockets("podman"),
        *_OF_ENGINES,
    ]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _find_program(name: str) -> str:
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def is_in_container() -> bool:
    return any(os.path.exists(sign) for sign in _SIGNS_OF_CONTAINER)


def _no_engine(kind: str) -> EngineError:
    if is_in_container():
        fix = "start this container with the engine's socket: -v /var/run/docker.sock:/var/run/docker.sock"
    elif kind == "podman":
        fix = "apt-get install podman"
    else:
        fix = "apt-get install docker.io, or podman; or DOCKER_HOST=unix:///PATH of its socket"
    what = {"docker": "Docker", "podman": "Podman"}.get(kind, "Docker or Podman")
    return EngineError(f"there is no {what} here", detail="no socket found", fix=fix, is_missing=True)


def explain_no_socket(path: str, error: OSError) -> EngineError:
    """Why a connection to the engine could not be made, and what would help."""
    service = "podman.socket" if "podman" in path else "docker"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            fix = "sudo usermod -aG docker $USER, and log in again; or Podman, which needs no group: --engine podman"
            if "podman" in path:
                fix = "systemctl --user start podman.socket"
            return EngineError("you may not open the engine's socket", detail=f"{path}: {error.strerror}", fix=fix)
        case errno.ENOENT if is_in_container():
            return EngineError(
                "the engine's socket is not in this container",
                detail=path,
                fix=f"start this container with -v {path}:{path}",
                is_missing=True,
            )
        case errno.ENOENT:
            return EngineError(
                "the engine's socket is not there", detail=path, fix=f"systemctl start {service}", is_missing=True
            )
        case errno.ECONNREFUSED:
            return EngineError(
                "the engine is not running", detail=f"{path}: {error.strerror}", fix=f"systemctl start {service}"
            )
    return EngineError("the engine cannot be reached", detail=f"{path}: {error}")
