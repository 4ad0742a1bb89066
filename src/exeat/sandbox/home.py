"""The folder of all of exeat's state, and how folders in it are opened: as checked descriptors.

The command that is to be confined runs as the same user. It must never choose what is behind a name here. So links
are not followed, and what is not ours, not a folder or writable by others is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from _thread import allocate_lock  # `threading` takes 2 ms to load

from exeat.errors import ConfigError
from exeat.paths import steps

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BY_EFFECTIVE_ID = os.access in os.supports_effective_ids


def state_home() -> str:
    """Where exeat keeps what it stores: a full path. Nothing is made or looked at."""
    given = os.environ.get("EXEAT_HOME")
    if given:
        if not given.startswith("/") or not given.strip("/"):
            from exeat.policy.host import shown  # 25 ms, and every run asks for this path

            raise ConfigError(
                f"{shown(given)} is not a place for exeat's files",
                where="EXEAT_HOME",
                expected="a full path, such as /home/me/exeat",
            )
        return given.rstrip("/")
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # the XDG specification: a relative path is to be ignored
        base = os.path.expanduser("~/.local/state")
    if not base.startswith("/"):
        raise ConfigError("there is no home directory", where="HOME", expected="HOME or EXEAT_HOME, as a full path")
    return f"{base.rstrip('/')}/exeat"


def open_home(*, create: bool) -> int | None:
    """A descriptor of the folder; None if it is not there and not to be made. Raises ConfigError if it is not safe."""
    path = state_home()
    _refuse_links(path)
    try:
        return open_folder(path, path)
    except FileNotFoundError:
        if not create:
            return None
    make_folders(path)
    try:
        return open_folder(path, path)
    except FileNotFoundError:
        raise refusal(path, "part of its path does not exist") from None


def make_home() -> None:
    """Make the folder if it is not there. Raises ConfigError."""
    descriptor = open_home(create=True)
    assert descriptor is not None
    os.close(descriptor)


def open_folder(name: str, shown_as: str, within: int | None = None) -> int:
    """A descriptor of a folder of ours. FileNotFoundError if it is not there, ConfigError for what is not ours."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=within)
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)
        raise refusal(shown_as, "it is a link or not a folder" if kind else f"{error.strerror}") from None
    fault = ownership_fault(os.fstat(descriptor))
    if fault:
        os.close(descriptor)
        raise refusal(shown_as, fault)
    return descriptor


_one_umask = allocate_lock()  # all threads share it, and two at once would leave it narrow


def make_folder(name: str, shown_as: str, within: int | None = None) -> None:
    """Make a folder with mode 0700, whatever the umask. What is there already is left as it is."""
    # A mode that was too narrow could only be changed by path, and so perhaps that of another folder.
    with _one_umask:
        before = os.umask(0o077)
        try:
            os.mkdir(name, 0o700, dir_fd=within)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(
                f"cannot be created: {error.strerror}",
                where=shown_as,
                expected="EXEAT_HOME in a place that you may write to",
            ) from None
        finally:
            os.umask(before)


def ownership_fault(found: os.stat_result) -> str:
    """What is wrong with the owner or the mode; "" if nothing is."""
    if found.st_uid != os.geteuid():
        return f"it belongs to uid {found.st_uid}, and you are uid {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it (chmod go-w)"
    return ""


def refusal(path: str, fault: str) -> ConfigError:
    """The error for what must not be used."""
    return ConfigError(f"not used: {fault}", where=path, expected="a regular file or folder that is yours")


def make_folders(path: str) -> None:
    """The folder and whatever is missing on the way to it."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        make_folder(each, each)


def _refuse_links(path: str) -> None:
    """Refuse a way that the command could turn: a link in a folder that we may write to, wherever links lead.

    A link in a folder that is not ours to write to, such as /home -> /var/home, is part of the system and is followed.
    """
    for step in steps(path):
        is_loop = step.fault is not None and step.fault.errno == errno.ELOOP
        if step.fault is not None and not is_loop:
            return  # nothing there; if it is something else, opening it will say so
        if is_loop or (step.is_link and os.access(step.folder, os.W_OK, effective_ids=_BY_EFFECTIVE_ID)):
            raise ConfigError(
                f"{step.here} is a symbolic link, which a command that runs as you could redirect",
                where=path,
                expected=f"EXEAT_HOME={os.path.realpath(path)}, the path without links",
            )
