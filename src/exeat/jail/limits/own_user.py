"""A user for one run only: an unused uid, with a name and a home inside the jail.

The uid is made of the caller's process number, so two runs at the same time never have the same one.
"""

from __future__ import annotations

import os

from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, mount

NAME = "exeat"
HOME = "/run/home"
TMPDIR = f"{HOME}/tmp"  # noqa: S108 - its own

# systemd's list of uids (UIDS-GIDS.md) has 0x70000000 to 0x7ffdffff as unused; containers end below it.
FIRST_UID = 0x7000_0000
_PER_SLOT = 1 << 22  # the largest process number is one less
_SLOTS = 62
LAST_UID = FIRST_UID + _SLOTS * _PER_SLOT - 1
_OVERLAYS = "/run/exeat-user"
_DELEGATIONS = ("/etc/subuid", "/etc/subgid")


def uid_candidates(pid: int) -> list[int]:
    """Uids for a process to try, from a random one on: a process number that comes again is to mean another uid."""
    start = os.urandom(1)[0]
    return [FIRST_UID + (start + turn) % _SLOTS * _PER_SLOT + pid % _PER_SLOT for turn in range(_SLOTS)]


def is_unused(uid: int) -> bool:
    """Does no one have this uid or gid: no account, no range of a user's containers, no process?"""
    return not (_has_account(uid) or _is_delegated(uid) or _has_process(uid))


def _has_account(uid: int) -> bool:
    import grp  # root's jail only
    import pwd

    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(uid)
        except KeyError:
            continue
        return True
    return False


def _is_delegated(uid: int) -> bool:
    for path in _DELEGATIONS:
        try:
            with open(path, errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            _, _, numbers = line.partition(":")
            first, _, count = numbers.partition(":")
            if first.isdecimal() and count.isdecimal() and int(first) <= uid < int(first) + int(count):
                return True
    return False


def _has_process(uid: int) -> bool:
    """Real, effective, saved or file system uid or gid of any process."""
    wanted = str(uid)
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/status", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            continue  # it has just ended
        if any(wanted in line.split()[1:] for line in lines if line.startswith(("Uid:", "Gid:"))):
            return True
    return False


def furnish(uid: int, gid: int) -> None:
    """Give the user a name and folders of its own, in the mount namespace of the jail. Raises OSError.

    To be called when /run is private already. All of it is gone with the jail.
    """
    os.chown(f"/run/user/{uid}", uid, gid)
    os.mkdir(HOME)
    mount("exeat", HOME, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,uid={uid},gid={gid}")
    os.mkdir(TMPDIR, 0o700)
    os.chown(TMPDIR, uid, gid)
    os.mkdir(_OVERLAYS, 0o755)
    # Programs ask for their own name, and ssh refuses to run for a user without one.
    _add_line("/etc/passwd", f"{NAME}:x:{uid}:{gid}::{HOME}:/bin/sh\n")
    _add_line("/etc/group", f"{NAME}:x:{gid}:\n")


def _add_line(path: str, line: str) -> None:
    try:
        with open(path, errors="surrogateescape") as file:
            content = file.read()
    except FileNotFoundError:
        return
    if content and not content.endswith("\n"):
        content += "\n"
    own = f"{_OVERLAYS}/{os.path.basename(path)}"
    descriptor = os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", errors="surrogateescape") as file:
        file.write(content + line)
    mount(own, os.path.realpath(path), None, MS_BIND)
