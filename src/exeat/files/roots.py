"""Which folders a command shares with the host for real."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

# Folders in which every program of the machine is at home. To work in one of them is no wish to have it changed.
_SYSTEM: Final = frozenset((
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/nix", "/opt", "/proc", "/root",
    "/run", "/sbin", "/snap", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/share",  # noqa: S108
    "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp",  # noqa: S108
))  # fmt: skip


def why_not_shared(folder: str, homes: Sequence[str]) -> str:
    """Why the working directory is not shared for real, as the end of a sentence; "" if it is. Paths without links.

    `homes`: the user's home directory, and others that count: the account's if HOME says another, for root everyone's.
    """
    if folder == "/":
        return "the root of the file system"
    if folder in homes:
        return "your home directory" if folder == homes[0] else "a home directory"
    if any(home.startswith(f"{folder}/") for home in homes):
        return "above your home directory" if homes[0].startswith(f"{folder}/") else "above a home directory"
    if folder in _SYSTEM or os.path.dirname(folder) == "/proc" or folder.startswith(("/proc/", "/sys/")):
        return "a folder of the system"
    return ""


def note_on_working_directory(why: str) -> str:
    return (
        f"the working directory is {why}, so the command gets a copy of it, and what it writes is thrown away; "
        "to let it change the real one: --write ."
    )
