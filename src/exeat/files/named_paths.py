"""Resolves `--write` and `--read-only` to full paths that exist and can be used.

Checked before anything starts. A path that would be shared, protected or hidden in another way than it was meant is an
error, never a guess.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy
from exeat.files.keys.hidden import OWN_FILES, HiddenPath
from exeat.paths import full_path, is_below, is_in

_OF_THE_JAIL = ("/proc", "/sys", "/dev", "/run")
_REMOVABLE = "/run/media"  # where desktops mount disks of the user's
_INSTEAD = {"/dev": "--device for a device; /dev/shm is the command's own", "/run": "--unix for a socket"}


class RealPaths(NamedTuple):
    """Without links, and there. `write` is shared for real; `read_only` cannot be changed, not even in a layer."""

    write: tuple[str, ...]
    read_only: tuple[str, ...]


def check_paths(
    policy: FilePolicy, hidden: Iterable[HiddenPath], *, home: str, here: str, state: str = ""
) -> RealPaths:
    """What the policy means. `here` is the working directory, `state` the folder of exeat. Raises ConfigError."""
    hidden = list(hidden)
    write = {_existing("--write", text, home): text for text in policy.write}
    read_only = {_existing("--read-only", text, home): text for text in policy.read_only}
    for path, text in write.items():
        _refuse_unwritable(path, f"--write {text}", state)
        refuse_hidden(path, f"--write {text}", hidden)
        for above, other in read_only.items():
            if is_below(path, above):
                raise ConfigError(f"is in what --read-only {other} protects", where=f"--write {text}")
    for path, text in read_only.items():
        refuse_hidden(path, f"--read-only {text}", hidden)
    refuse_hidden(os.path.realpath(here), "the working directory", hidden)
    return RealPaths(tuple(write), tuple(read_only))


def _existing(option: str, text: str, home: str) -> str:
    where = f"{option} {text}"
    if not text or "\0" in text:
        raise ConfigError("is not a path", where=where, expected="a file or folder")
    path = os.path.realpath(full_path(text, home))
    of_the_jail = next((folder for folder in _OF_THE_JAIL if is_below(path, folder)), "")
    if of_the_jail and not is_below(path, _REMOVABLE):
        raise ConfigError(
            f"{of_the_jail} is the jail's own there, not the machine's",
            where=where,
            expected=_INSTEAD.get(of_the_jail, "another path"),
        )
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        fault = "does not exist" if is_missing else f"cannot be looked at: {error.strerror}"
        raise ConfigError(fault, where=where, expected="an existing file or folder") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError("is neither a file nor a folder", where=where, expected="--unix for a socket, or --device")
    return path


def _refuse_unwritable(path: str, where: str, state: str) -> None:
    if state and is_below(path, os.path.realpath(state)):
        raise ConfigError("is exeat's own: its contents control the command", where=where, expected="another path")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise ConfigError("is on a file system that is mounted read-only", where=where, expected="another path")
    if os.path.isfile(path) and not os.access(path, os.W_OK):
        raise ConfigError("is not writable for you", where=where, expected="a file of yours")


def refuse_hidden(path: str, where: str, hidden: list[HiddenPath]) -> None:
    for entry in hidden:
        if is_below(path, entry.path) and not _is_kept(path, entry):
            raise ConfigError(
                f"is hidden from the command, as {entry.path} is ({entry.why})",
                where=where,
                expected="another path" if entry.why == OWN_FILES else f"--show {entry.path}",
            )


def _is_kept(path: str, entry: HiddenPath) -> bool:
    """Only what was named whole; for patterns there is no need."""
    return is_in(path, (f"{entry.path}/{kept}" for kept in entry.keep))
