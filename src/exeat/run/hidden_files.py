"""What is not there for the command: keys, and all that decides about the command or tells of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from exeat.errors import ConfigError, StartError
from exeat.files.keys import HiddenPath, hidden_paths
from exeat.run.preparations import NOTHING, Preparations
from exeat.run.settings import RunSettings
from exeat.sandbox.home import state_home


def find_hidden(settings: RunSettings, prepared: Preparations = NOTHING) -> list[HiddenPath]:
    """What is not there for the command. With the host's own files that is what decides about it, and no keys."""
    own, program = _own_files(settings, prepared), os.path.basename(settings.argv[0])
    if settings.files.mode == "view":
        return hidden_paths(user_home(), os.environ, os.geteuid(), settings.files, program=program, own=own)
    return [HiddenPath(path, (), "") for path in dict.fromkeys(map(os.path.realpath, (*own, *settings.files.hide)))]


def user_home() -> str:
    """Without links. There may be none: no variable, and no account."""
    found = os.path.expanduser("~")
    return os.path.realpath(found) if found.startswith("/") else "/"


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory does not exist any more", where="exeat run", expected="cd") from None


def _own_files(settings: RunSettings, prepared: Preparations) -> list[str]:
    """What decides about the command, or tells of it: rules, secrets, logs, exeat's own state."""
    log = (settings.audit, *settings.log_files)
    written = (*dict.fromkeys(log), settings.learn_out, settings.summary_json)
    files = (*written, *settings.policy_files, *settings.secrets_files, *prepared.hidden)
    for path in prepared.hidden:
        _refuse_second_name(path)
    found = [os.path.abspath(path) for path in files if path and _can_be_hidden(path)]
    try:
        state = state_home()
    except ConfigError:
        return found  # no home, and so no state
    real = os.path.realpath(state)
    if _is_below(working_directory(), real):
        raise ConfigError(
            "the working directory is in exeat's own folder, which is hidden from the command",
            where="exeat run",
            expected="cd to another folder",
        )
    for path in settings.unix:
        if _is_below(os.path.realpath(path), real):
            raise ConfigError("this is exeat's own", where=f"--unix {path}", expected="a socket of another program")
    return [*found, state]


def refuse_second_names(paths: Iterable[str]) -> None:
    """Of what decides about the command, or tells of it, in folders that it changes. Raises StartError."""
    for path in paths:
        if _has_second_name(path):
            raise StartError(
                f"{path!r} decides about the command, or tells of it, and has a second name (a hard link), by which "
                "the command could change it",
                detail="remove the other name, or keep the file outside of the folders that the command changes",
            )


def _has_second_name(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False  # gone, or out of the command's reach as well
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1


def _refuse_second_name(path: str) -> None:
    """Of a file with a value in it: only names that are known can be hidden."""
    if _has_second_name(path):
        raise StartError(
            f"{path!r} holds a secret and has a second name (a hard link), by which the command could read it",
            detail="remove the other name, or name a file that has one",
        )


def _can_be_hidden(path: str) -> bool:
    """A file or a pipe. Standard output and devices are the command's as well."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and not path.startswith(("/dev/", "/proc/")))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
