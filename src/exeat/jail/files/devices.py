"""The jail's own /dev: what every program needs, what computes, what the caller names. Nothing else is there.

As the host has it, root opens disks, consoles and loop devices without a capability, and an ordinary user whatever a
group grants: virtual machines, cameras, keyboards. /dev/shm is one more way to speak to programs outside.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterable

from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, mount
from exeat.paths import look

DEV = "/dev"
_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty")
# Graphics cards and their kin, for those whom the host lets use them: without them, much of what runs here is useless.
# Not `card*`, which sets the screen.
_COMPUTING = ("nvidia", "nvidia-caps/nvidia", "dri/renderD", "accel/accel", "kfd", "dxg")  # how their names begin
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_OWN = (f"{DEV}/ptmx", f"{DEV}/pts/ptmx")  # there in any case: they make terminals, and these are the jail's own
_SAFE = MS_NOSUID | MS_NODEV | MS_NOEXEC


def is_device(path: str) -> bool:
    """Is this a device file of /dev, by its own name there?"""
    found = look(path)
    is_named = os.path.normpath(path) == path and path.startswith(f"{DEV}/")
    return is_named and found is not None and (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode))


def is_terminal_of_host(path: str) -> bool:
    """One that cannot be shown: the names of terminals inside are the jail's."""
    return path.startswith(f"{DEV}/pts/") and path not in _OWN


class OwnDevices:
    """What is to be in /dev, found while the host's is still there, and put there when it is not. Raises OSError."""

    def __init__(self, named: Iterable[str], hidden: int = 0) -> None:
        """`hidden` is the number of a device that is not shown, whatever else is asked for."""
        self._terminal = terminal = _own_terminal()
        wanted = [
            *(f"{DEV}/{name}" for name in _HARMLESS),
            *_computing(),
            *(path for path in named if path not in _OWN),
        ]
        if terminal and not _number_of(terminal):
            wanted.append(terminal)  # a console: its name is all that is missing, the command has it open already
        self._has_queues, self._has_terminals = (os.path.isdir(f"{DEV}/{name}") for name in ("mqueue", "pts"))
        self._shown = {
            path: os.open(path, os.O_PATH | os.O_CLOEXEC)
            for path in wanted
            if is_device(path) and os.lstat(path).st_rdev != hidden
        }
        has_number = terminal and _number_of(terminal)
        self._held = os.open(terminal, os.O_PATH | os.O_CLOEXEC) if has_number else -1

    def put(self) -> int:
        """Fill the jail's own /dev. Returns a descriptor to be kept open, for its terminal; -1 if there is none."""
        if not os.path.isdir(DEV):
            return -1  # no programs either that need it
        mount("exeat", DEV, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=1m")
        for path, descriptor in self._shown.items():
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
            os.close(descriptor)
        for name, target in _LINKS.items():
            os.symlink(target, f"{DEV}/{name}")
        os.mkdir(f"{DEV}/shm")
        mount("exeat", f"{DEV}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        if self._has_queues:
            os.mkdir(f"{DEV}/mqueue")
            mount("mqueue", f"{DEV}/mqueue", "mqueue", _SAFE)  # those of the jail's own IPC namespace
        return _give_own_terminals(self._terminal, self._held) if self._has_terminals else -1


def _computing() -> list[str]:
    found = []
    for beginning in _COMPUTING:
        folder, _, name = f"{DEV}/{beginning}".rpartition("/")
        try:
            found += [f"{folder}/{each}" for each in os.listdir(folder) if each.startswith(name)]
        except OSError:
            continue  # most machines have none of them
    return found


def _give_own_terminals(own: str, held: int) -> int:
    """A devpts of the jail's own, with the caller's terminal in it and no other. Returns a descriptor to be kept open.

    Other windows of the same user can be read and written by name: keys stolen, escape sequences sent.
    """
    os.mkdir(f"{DEV}/pts")
    mount("devpts", f"{DEV}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    if held < 0:
        return -1
    # The file system makes no files but terminals, so make one that has the number of ours, and put ours over it.
    number = int(_number_of(own))
    masters: list[int] = []
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            while len(masters) <= number:
                masters.append(os.open(f"{DEV}/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        mount(f"/proc/self/fd/{held}", own, None, MS_BIND)
        return masters.pop()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
            raise
        return -1  # too high a number: the terminal works, and only has no name inside
    finally:
        os.close(held)
        for each in masters:
            os.close(each)


def _number_of(terminal: str) -> str:
    """Of a pseudo-terminal; "" for others."""
    number = terminal.removeprefix(f"{DEV}/pts/")
    return number if number.isdigit() else ""


def _own_terminal() -> str:
    """The path of the terminal on a standard stream, "" if there is none that has one."""
    for stream in (0, 1, 2):
        try:
            if os.isatty(stream):
                return os.ttyname(stream)
        except OSError:
            continue
    return ""
