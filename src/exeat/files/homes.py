"""Whose home directories a command could read: its own user's, by whatever HOME says, and for root everyone's."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

ACCOUNTS = "/etc/passwd"  # read as it is: asking the C library may mean a network
HOMES = "/home"
_NO_LOGIN = ("nologin", "false", "sync", "shutdown", "halt")


def home_directories(home: str, environ: Mapping[str, str], uid: int) -> list[str]:
    """Without links. The first is the one that was given; of others those that are there."""
    accounts = _accounts()
    found = [folder for number, folder, _ in accounts if number == str(uid)]
    if uid == 0:
        found += [folder for number, folder, _ in accounts if number == environ.get("SUDO_UID")]
        found += [folder for _, folder, shell in accounts if shell.rpartition("/")[2] not in _NO_LOGIN]
        found += _folders_in(HOMES)
    first = os.path.realpath(home)
    others = dict.fromkeys(os.path.realpath(folder) for folder in found if folder.startswith("/"))
    return [first, *(folder for folder in others if folder not in (first, "/") and os.path.isdir(folder))]


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


def _folders_in(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    except OSError:
        return []
