"""Why a jail is not available on this machine, and the command that would change it."""

from __future__ import annotations

import errno
import os

from exeat.errors import JailError
from exeat.jail.files.mounttable import MountTable

_SETTINGS = {
    "unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
    "apparmor": "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "max_user_namespaces": "/proc/sys/user/max_user_namespaces",
    "max_net_namespaces": "/proc/sys/user/max_net_namespaces",
}

# What a setting has to be for namespaces to be refused, how to say that, and what to set instead.
_REFUSALS = (
    ("max_user_namespaces", "0", "user.max_user_namespaces is 0", "user.max_user_namespaces=15000"),
    ("unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"),
    (
        "apparmor",
        "1",
        "AppArmor restricts them (Ubuntu 23.10 and later)",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


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
                fix="start from a folder that every user may enter, and not below /run or /dev/shm, which are private",
            )
        case _:
            return JailError(f"the jail could not be built ({step})", detail=reason)


def _no_view(number: int, reason: str) -> JailError:
    """The copy-on-write view of files is refused. There is none that is weaker without being asked for."""
    public = "the command cannot have a copy-on-write view of your files here"
    host = "--files host leaves your files as they are: the command can then change whatever you can"
    match number:
        case errno.ENODEV:
            detail, fix = "this kernel has no overlay file system", f"sudo modprobe overlay, or {host}"
        case errno.EPERM if os.geteuid() != 0:
            detail = f"{reason}; an ordinary user's overlay needs Linux 5.11, and this is {os.uname().release}"
            fix = f"run as root, or {host}"
        case errno.EACCES if _has_modules():
            detail, fix = f"{reason}; SELinux or AppArmor may forbid it", f"sudo dmesg names the rule; or {host}"
        case errno.EINVAL:
            detail, fix = f"{reason}; {_about_root()}", host
        case errno.E2BIG:
            detail = reason
            fix = f"unmount what is mounted there (EXEAT_HOME names another place for exeat's own files), or {host}"
        case errno.ELOOP | errno.ENOTDIR:
            detail, fix = reason, "exeat files discard removes the changes of earlier runs in the sandbox"
        case _:
            detail, fix = reason, host
    return JailError(public, detail=detail, fix=fix)


def _about_root() -> str:
    """Why the root of the machine may not be good for a layer."""
    kind = next((each.kind for each in reversed(MountTable().mounts) if each.point == "/"), "")
    if kind == "overlay":
        return "the root is an overlay already, as in a container, and Linux allows no more than two on each other"
    return f"Linux cannot layer the root of this machine ({kind})"


def _has_modules() -> bool:
    """Is there a security module that may say no?"""
    return os.path.exists("/sys/fs/selinux/enforce") or os.path.exists("/sys/module/apparmor/parameters/enabled")


def _no_namespaces(number: int, reason: str) -> JailError:
    """Namespaces are refused: find out by whom."""
    if is_already_inside():
        # Not a kind of jail that is missing: no other kind is available in here either.
        return JailError(
            "already inside an exeat jail, which allows no jail inside it",
            detail=reason,
            fix="leave out the inner `exeat run`: the rules of the outer one apply to everything inside",
        )
    error = _who_refuses(number, reason)
    error.is_missing = True
    return error


def _who_refuses(number: int, reason: str) -> JailError:
    public = "the netns jail needs user namespaces, which are refused here"
    for name, refusing, detail, fix in _REFUSALS:
        if setting(name) == refusing:
            return JailError(public, detail=detail, fix=f"sudo sysctl {fix}")
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
