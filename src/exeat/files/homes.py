"""Folders of a machine that are more than a place for files: home directories, and those of the system."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from exeat.paths import is_below

# Without these no command runs, so none of them can be hidden as a whole.
_NEEDED: Final = frozenset(f"/{name}" for name in (
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "nix", "opt", "proc", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/local", "usr/sbin", "usr/share", "var", "var/cache", "var/lib",
    "var/log", "var/tmp",
))  # fmt: skip
# In these, too, every program is at home. To work in one of them is no wish to have it changed.
_NOT_SHARED: Final = _NEEDED | {"/media", "/mnt", "/snap", "/var/run", "/var/spool"}
_OF_SYSTEM: Final = ("/usr/", "/bin/", "/sbin/", "/lib", "/nix/", "/opt/", "/snap/")
ACCOUNTS = "/etc/passwd"  # read as it is: asking the C library may mean a network
HOMES = "/home"
_NO_LOGIN = ("nologin", "false", "sync", "shutdown", "halt")


def home_directories(home: str, environ: Mapping[str, str], uid: int) -> list[str]:
    """Those that the command could read: its user's, whatever HOME says, and for root everyone's. Without links.

    The first is the one that was given; of others those that are there.
    """
    accounts = _accounts()
    found = [folder for number, folder, _ in accounts if number == str(uid)]
    if uid == 0:
        found += [folder for number, folder, _ in accounts if number == environ.get("SUDO_UID")]
        found += [folder for _, folder, shell in accounts if shell.rpartition("/")[2] not in _NO_LOGIN]
        with suppress(OSError):
            found += [f"{HOMES}/{name}" for name in sorted(os.listdir(HOMES))]
    first = os.path.realpath(home)
    others = dict.fromkeys(os.path.realpath(folder) for folder in found if folder.startswith("/"))
    return [first, *(folder for folder in others if folder not in (first, "/") and os.path.isdir(folder))]


def is_needed(path: str, home: str) -> bool:
    """Would nothing be left if this were hidden: the system's folders, the home directory and what it is in?"""
    return path in _NEEDED or is_below(home, path)


def is_of_system(path: str) -> bool:
    return path.startswith(_OF_SYSTEM)


def runtime_folder(environ: Mapping[str, str], uid: int) -> str:
    """Where programs that run keep sockets and tokens, without links; "" if that is in /run, or not meant for them."""
    path = environ.get("XDG_RUNTIME_DIR", "")
    try:
        real = os.path.realpath(path, strict=True)
        found = os.stat(real)
    except (OSError, ValueError):
        return ""
    is_closed = found.st_uid == uid and not found.st_mode & 0o077  # as the specification has it
    is_one = path.startswith("/") and stat.S_ISDIR(found.st_mode) and is_closed and not real.startswith("/run/")
    return real if is_one else ""


def _accounts() -> list[tuple[str, str, str]]:
    """Number, home directory and shell of each."""
    try:
        with open(ACCOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(":") for line in file.read().split("\n")]
    except OSError:
        return []
    return [(fields[2], fields[5], fields[6]) for fields in lines if len(fields) == 7]


def why_not_shared(folder: str, homes: Sequence[str]) -> str:
    """Why the working directory is not shared for real, as the end of a sentence; "" if it is. Paths without links.

    `homes`: the user's home directory, and others that count: the account's if HOME says another, for root everyone's.
    """
    if folder == "/":
        return "the root of the file system"
    if folder in homes:
        return "your home directory" if folder == homes[0] else "a home directory"
    if any(is_below(home, folder) for home in homes):
        return "above your home directory" if is_below(homes[0], folder) else "above a home directory"
    if folder in _NOT_SHARED or folder.startswith(("/proc/", "/sys/")):
        return "a folder of the system"
    return ""


def note_on_working_directory(why: str) -> str:
    return (
        f"the working directory is {why}, so the command gets a copy of it, and its changes are dropped; "
        "to let it change the real one: --write ."
    )
