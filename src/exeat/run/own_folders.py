"""The folders in which exeat keeps its state, as far as a run must care: which they are, and that they can be hidden.

What is not there cannot be hidden, and a command could make it, with rules of its own in it for the next run. So every
run makes them first, whether or not it stores anything itself.
"""

from __future__ import annotations

import errno
import os

from exeat.errors import ConfigError
from exeat.jail.way import steps
from exeat.sandbox.home import open_home, state_home

# A folder that holds one of these is no folder of exeat's own: without them no command runs.
_NEEDED = ("/bin", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/tmp", "/usr", "/var")  # noqa: S108


def what_stands_in_the_way(hidden: list[str]) -> list[str]:
    """Of usual folders that cannot be made: what a command could remove, to make them itself. It is to be pinned.

    Raises ConfigError where there is nothing to pin, only a folder that its owner could open with a chmod.
    """
    found = []
    for path in _usual_folders():
        if path in hidden or _what_needs(path) or _is_out_of_reach(path):
            continue
        if _is_blocked(path):
            found.append(path)
            continue
        raise ConfigError(
            "cannot be made now, but by a command that runs as you after a chmod, with rules of its own in it",
            where=path,
            expected="the folder above it to be writable",
        )
    return found


def _is_blocked(path: str) -> bool:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return not os.path.isdir(path)


def hold_own_folders(*, is_named: bool) -> list[str]:
    """Make what is missing, and give the paths of all that are to be hidden. Nothing may start after a ConfigError.

    Beside the folder in use, that is the one which a run without EXEAT_HOME or XDG_STATE_HOME would use.
    """
    used = _hold_used(is_named=is_named)
    return [*used, *(path for path in _usual_folders() if path not in used and _hold_other(path))]


def is_in_own_folder(path: str, folders: list[str]) -> bool:
    """Is this one of the folders, or in one, by whatever path?"""
    real = os.path.realpath(path)
    return any(_is_below(real, os.path.realpath(folder)) for folder in folders)


def _hold_used(*, is_named: bool) -> list[str]:
    try:
        path = state_home()
    except ConfigError:
        if is_named or os.environ.get("EXEAT_HOME"):
            raise
        return []  # no home, and so none for the command's next run either
    _refuse_what_others_need(path)
    try:
        descriptor = open_home(create=True)
    except ConfigError:
        # Somebody without a home that can be written to may still run a command, if that cannot make the folder too.
        if is_named or not _is_out_of_reach(path):
            raise
        return []
    assert descriptor is not None
    os.close(descriptor)
    return [path]


def _usual_folders() -> list[str]:
    bases = (os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~/.local/state"))
    return list(dict.fromkeys(f"{base.rstrip('/')}/exeat" for base in bases if base.startswith("/")))


def _hold_other(path: str) -> bool:
    """Of a folder that is not in use now nothing is asked but that it is hidden if it can be there."""
    before = os.umask(0o077)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        pass  # then it is not ours to make, or something else is in the way
    finally:
        os.umask(before)
    return os.path.isdir(path) and not _what_needs(path)


def _refuse_what_others_need(path: str) -> None:
    needed = _what_needs(path)
    if needed:
        raise ConfigError(
            f"exeat's own folder is hidden from the command, and {needed} is in this one",
            where=f"EXEAT_HOME={path}" if os.environ.get("EXEAT_HOME") else path,
            expected="a folder for nothing else, such as EXEAT_HOME=~/.exeat",
        )


def _what_needs(path: str) -> str:
    """What a command cannot do without and would be hidden with this folder; "" if there is nothing."""
    real = os.path.realpath(path)
    if _is_below(os.path.realpath(os.path.expanduser("~")), real):
        return "your home directory"
    return next((each for each in _NEEDED if _is_below(os.path.realpath(each), real)), "")


def _is_out_of_reach(path: str) -> bool:
    """Is the folder missing, and could somebody with our rights not make it either?"""
    for step in steps(path):
        match step.fault:
            case None:
                if step.is_link and _can_be_changed(step.folder):
                    return False  # it could be turned
            case FileNotFoundError():
                return not _can_be_changed(step.folder)
            case PermissionError():
                return os.stat(step.folder).st_uid != os.geteuid()  # its owner could open it with a chmod
            case _:
                return False
    return False


def _can_be_changed(folder: str) -> bool:
    """Could somebody with our rights make something in it, after a chmod or by way of another mount of it?"""
    for path in (folder, *_other_paths(folder)):
        try:
            if os.access(path, os.W_OK):
                return True
            is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            if os.stat(path).st_uid == os.geteuid() and not is_read_only:
                return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOENT, errno.ENOTDIR):
                return True  # fail closed
    return False


def _other_paths(folder: str) -> list[str]:
    try:
        from exeat.jail.mounttable import MountTable  # noqa: PLC0415 - for those who have no home, and on Linux only

        return MountTable().other_paths(os.path.realpath(folder)) if folder != "/" else []
    except OSError:
        return []


def _is_below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")
