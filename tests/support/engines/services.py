"""How each engine is started so that it has nothing in common with the machine's own: folders, sockets, settings."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Ordinary users of the tests. Their numbers belong to no one on a usual machine.
GROUP_UID = 61_020  # who may only talk to root's engine,
SOCKET_GID = 61_021  # as a member of this group
# Who has an engine of their own: another user for each session, because the kernel counts keys and watches by user.
_ROOTLESS_UID = 61_100  # the first of them
_SESSIONS = 100
_SUBORDINATE = 6_200_000  # the first of their other numbers
_SUBORDINATES = 65_536

# Where engines put things whatever they are told. In the keeper's view of the files these folders are its own.
COVERED = ("/run/containerd", "/run/netns", "/run/containers", "/run/libpod", "/run/runc", "/var/lib/cni", "/dev/shm")


def engine_folder(session: str) -> str:
    """The name of the folder that has the engines of a session, which is named in hexadecimal digits."""
    return f"exeat-eng-{session}"


def rootless_uid(session: str) -> int:
    return _ROOTLESS_UID + int(session, 16) % _SESSIONS


@dataclass(frozen=True, slots=True)
class Service:
    """A command that serves an engine's API at a socket, and what is mounted over files of the machine for it."""

    argv: Sequence[str]
    socket: Path
    env: Mapping[str, str]
    over: Mapping[str, Path]
    gid: int | None = None  # who the socket is for, besides its owner


def docker(folder: Path) -> Service:
    """Root's `dockerd`, with bridges and packet rules in the keeper's network."""
    where = folder / "docker.sock"
    argv = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    argv += ["--pidfile", str(folder / "pid"), "--host", f"unix://{where}", "--config-file", str(folder / "none.json")]
    argv += ["--cgroup-parent", f"/{folder.parent.name}-{folder.name}", "--shutdown-timeout", "1"]
    (folder / "none.json").write_text("{}")
    return Service(argv, where, {"HOME": str(folder)}, {}, SOCKET_GID)


def podman(folder: Path) -> Service:
    """Root's Podman."""
    return _podman(folder, 0)


def podman_rootless(folder: Path) -> Service:
    """The Podman of an ordinary user, who has 65 536 other numbers."""
    uid = rootless_uid(folder.parent.name.rpartition("-")[2])
    first = _SUBORDINATE + (uid - _ROOTLESS_UID) * _SUBORDINATES
    home = folder / "home"
    name = "exeat-test"
    # All of /etc: a mount over a single file goes when someone adds a user to the machine, which replaces the file.
    etc = folder / "etc"
    subprocess.run(["cp", "--archive", "/etc", str(etc)], check=True)
    for database, line in {
        "passwd": f"{name}:x:{uid}:{uid}::{home}:/bin/sh",
        "group": f"{name}:x:{uid}:",
    }.items():
        with (etc / database).open("a") as file:
            file.write(f"{line}\n")
    for database in ("subuid", "subgid"):
        (etc / database).write_text(f"{name}:{first}:{_SUBORDINATES}\n")
    return _podman(folder, uid, {"/etc": etc})


def _podman(folder: Path, uid: int, over: Mapping[str, Path] | None = None) -> Service:
    home, run = folder / "home", folder / "run"
    for each in (home, run):
        each.mkdir()
        each.chmod(0o700)
        os.chown(each, uid, uid)
    # Where Podman looks if it is told the storage alone: so it is when a container ends and is removed.
    # runc, because crun refuses to work where both versions of control groups are mounted.
    (folder / "containers.conf").write_text(
        f"""[containers]
default_ulimits = ["nofile={_limit(resource.RLIMIT_NOFILE)}", "nproc={_limit(resource.RLIMIT_NPROC)}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{run}/libpod"
static_dir = "{home}/storage/libpod"
volume_path = "{home}/storage/volumes"
[network]
network_backend = "netavark"
network_config_dir = "{home}/networks"
"""
    )
    (folder / "storage.conf").write_text(
        f"""[storage]
driver = "overlay"
graphroot = "{home}/storage"
runroot = "{run}/storage"
rootless_storage_path = "{home}/storage"
"""
    )
    where = run / "podman.sock"
    become = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"] if uid else []
    env = {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(run),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    argv = [*become, "podman", "system", "service", "--time", "0", f"unix://{where}"]
    return Service(argv, where, env, over or {})


def _limit(kind: int) -> str:
    """Podman's own default is a million, which root may not be allowed either."""
    most = resource.getrlimit(kind)[1]
    number = 16_384 if most == resource.RLIM_INFINITY else min(16_384, most)
    return f"{number}:{number}"


SERVICES: Mapping[str, Callable[[Path], Service]] = {
    "docker": docker,
    "podman": podman,
    "podman-rootless": podman_rootless,
}
# What has to be installed for each: the program, and what it starts.
PROGRAMS: Mapping[str, Sequence[str]] = {
    "docker": ("dockerd", "containerd", "runc", "iptables"),
    "podman": ("podman", "conmon", "runc", "iptables"),
    "podman-rootless": ("podman", "conmon", "runc", "newuidmap", "setpriv"),
}
