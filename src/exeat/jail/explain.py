"""Why a jail cannot be had on this machine, and the command that would change it."""

from __future__ import annotations

import errno
import os

from exeat.errors import JailError

_SETTINGS = {
    "unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
    "apparmor": "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "max_user_namespaces": "/proc/sys/user/max_user_namespaces",
    "max_net_namespaces": "/proc/sys/user/max_net_namespaces",
}


def setting(name: str) -> str:
    """A kernel setting's value, or "" if this kernel has no such setting."""
    try:
        with open(_SETTINGS[name]) as file:
            return file.read().strip()
    except OSError:
        return ""


def container() -> str:
    """The kind of container that this process is in, or ""."""
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return os.environ.get("container", "")  # noqa: SIM112 - systemd's name for it


def is_already_inside() -> bool:
    """Are we in a jail of our own already? It allows no further one."""
    return os.path.exists("/run/exeat/hidden")


def explain_failure(step: str, number: int, reason: str) -> JailError:
    """The error for a step of building the jail that the kernel refused."""
    match step:
        case "namespaces":
            return _no_namespaces(number, reason)
        case "network" if number in (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.ENOENT, errno.EAFNOSUPPORT):
            return JailError(
                "the netns jail needs nf_tables, which this kernel does not offer",
                detail=reason,
                fix="sudo modprobe -a nf_tables nft_chain_nat nft_redir nft_ct",
                is_missing=True,
            )
        case "network" if number in (errno.EPERM, errno.EACCES):
            return _no_namespaces(number, reason)
        case "proc":
            return JailError(
                "the jail cannot have a /proc of its own",
                detail=f"{reason}; parts of this container's /proc are masked, so the kernel refuses a full one",
                fix="docker run --security-opt systempaths=unconfined ... (podman: --security-opt unmask=ALL)",
            )
        case "descriptors" if number in (errno.EISDIR, errno.ENOTSOCK, errno.EPERM):
            return JailError(reason)
        case "mounts" if number in (errno.EPERM, errno.EACCES):
            return _no_namespaces(number, reason)
        case "view":
            return _no_view(number, reason)
        case "folder":
            return JailError(
                "the working directory cannot be entered inside the jail",
                detail=reason,
                fix="start from another folder: /run and /dev/shm are private in the jail",
            )
        case "own folder":
            return JailError(
                "the working directory cannot be entered inside the jail",
                detail=f"{reason}; in the nft jail the command is a user of its own, without rights to your files",
                fix="start from a folder that everybody may enter, and not below /run or /dev/shm, which are private",
            )
        case _:
            return JailError(f"the jail could not be built ({step})", detail=reason)


def _no_view(number: int, reason: str) -> JailError:
    """The copy-on-write view of files is refused. There is none that is weaker without being asked for."""
    public = "the command cannot have a copy-on-write view of your files here"
    host = "--files host leaves your files as they are: the command can then change whatever you can"
    if number == errno.ENODEV:
        return JailError(
            public, detail="this kernel has no overlay file system", fix=f"sudo modprobe overlay, or {host}"
        )
    if number == errno.EPERM and os.geteuid() != 0:
        detail = f"{reason}; an ordinary user's overlay needs Linux 5.11, and this is {os.uname().release}"
        return JailError(public, detail=detail, fix=f"run as root, or {host}")
    return JailError(public, detail=reason, fix=host)


def _no_namespaces(number: int, reason: str) -> JailError:
    """Namespaces are refused: find out by whom."""
    if is_already_inside():
        # Not a kind of jail that is missing: no other kind could be had in here either.
        return JailError(
            "already inside an exeat jail, which allows no other jail in it",
            detail=reason,
            fix="leave out the inner `exeat run`: the outer one's rules hold for all that runs in it",
        )
    error = _who_refuses(number, reason)
    error.is_missing = True
    return error


def _who_refuses(number: int, reason: str) -> JailError:
    public = "the netns jail needs user namespaces, which are refused here"
    if setting("max_user_namespaces") == "0":
        return JailError(
            public, detail="user.max_user_namespaces is 0", fix="sudo sysctl user.max_user_namespaces=15000"
        )
    if setting("unprivileged_userns_clone") == "0":
        return JailError(
            public,
            detail="kernel.unprivileged_userns_clone is 0",
            fix="sudo sysctl kernel.unprivileged_userns_clone=1",
        )
    if setting("apparmor") == "1":
        return JailError(
            public,
            detail="AppArmor restricts them (Ubuntu 23.10 and later)",
            fix="sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
    kind = container()
    if kind:
        option = "unmask=ALL" if kind == "podman" else "systempaths=unconfined"
        return JailError(
            public,
            detail=f"{reason}; this is a container ({kind}), whose seccomp profile forbids them",
            fix=f"{kind} run --security-opt seccomp=unconfined --security-opt {option} ...",
        )
    if number == errno.ENOSPC:
        return JailError(public, detail="too many namespaces", fix="sudo sysctl user.max_user_namespaces=15000")
    return JailError(public, detail=reason, fix="run as root with --jail nft, or ask the machine's administrator")
