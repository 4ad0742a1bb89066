"""Safe /proc, /sys and /dev: through the host's own, a program could reach past its namespaces.

The jail has a /dev of its own: what every program needs, what computes, what the caller names. As the host has it, root
opens disks, consoles and loop devices without a capability, and an ordinary user whatever a group grants: virtual
machines, cameras, keyboards. /dev/shm is one more way to speak to programs outside.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

from exeat.jail.files.mounttable import MountTable
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT, mount, syscall
from exeat.paths import look

_SAFE = MS_NOSUID | MS_NODEV | MS_NOEXEC
_SYS_MOUNT_SETATTR = 442  # the same on every machine
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_ATTR_NODEV = 4
_ATTR_READ_ONLY = 1

# A control group can kill and freeze what is outside; sysfs and its kin go by uid, not by capability.
TO_READ_ONLY = (
    "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore", "efivarfs",
    "selinuxfs", "smackfs", "fusectl", "resctrl", "binfmt_misc",
)  # fmt: skip
# Settings of the kernel that root's program could use to have a program of its choice started outside (core_pattern).
_PROC_OF_ROOT = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")

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


def read_only(path: str) -> None:
    """Make one mount read-only and change nothing else of it."""
    try:
        _set_attributes(path, on=_ATTR_READ_ONLY)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before Linux 5.12. What the mount had must be said again.
        flags = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def read_only_below(path: str) -> None:
    """Make a mount read-only, and all that are in it."""
    try:
        _set_attributes(path, on=_ATTR_READ_ONLY, flags=_AT_RECURSIVE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        for point in (path, *MountTable().points_below(path)):
            if os.path.lexists(point):
                read_only(point)


def close_doors(*, is_root: bool) -> None:
    """Take the host's control groups, kernel settings, message queues and, from root, devices away. For the builder.

    /dev is the jail's own by then.
    """
    table = MountTable()
    for point in table.of_kind(*TO_READ_ONLY):
        if os.path.lexists(point):  # else out of reach already
            read_only(point)
    for point in table.of_kind("proc"):
        if point != "/proc" and os.path.isdir(point):  # a chroot's, for example: it shows the host's processes
            mount("exeat", point, "tmpfs", _SAFE | MS_RDONLY, "mode=555")
    for point in table.of_kind("mqueue"):
        if os.path.lexists(point) and not point.startswith("/dev/"):
            mount("mqueue", point, "mqueue", _SAFE)  # shows the queues of the jail's own IPC namespace
    if os.path.ismount("/dev"):
        read_only("/dev")
    if is_root:
        _keep_devices_to_dev()


def _keep_devices_to_dev() -> None:
    """A file that stands for a disk can be anywhere: in a chroot, in a copy of /dev. Only in /dev it is one.

    Before Linux 5.12 the kernel cannot do this for all mounts at once, and it stays as it is: docs/limits.md.
    """
    try:
        _set_attributes("/", on=_ATTR_NODEV, flags=_AT_RECURSIVE)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return
        raise
    table = MountTable()
    for point in {*filter(_is_device, table.points_below("/dev")), *table.of_kind("devpts")}:
        if os.path.lexists(point):
            _set_attributes(point, off=_ATTR_NODEV)


def _is_device(path: str) -> bool:
    found = look(path)  # None: of the host's /dev, which is covered
    return found is not None and (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode))


def _set_attributes(path: str, *, on: int = 0, off: int = 0, flags: int = 0) -> None:
    change = struct.pack("=QQQQ", on, off, 0, 0)
    syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, change, len(change))


def mount_proc(*, is_root: bool) -> None:
    """A /proc that shows the jail's processes only. To be called by a process inside the PID namespace."""
    mount("proc", "/proc", "proc", _SAFE)
    if is_root:
        for name in _PROC_OF_ROOT:
            path = f"/proc/{name}"
            if os.path.exists(path):
                mount(path, path, None, MS_BIND)
                read_only(path)


def hide_terminals_elsewhere(blank: str) -> None:
    """Take the caller's terminal away where it is shown outside of /dev: the command has one of its own."""
    for point in MountTable().of_kind("devpts"):
        if point.startswith("/dev/") or not os.path.exists(point):
            continue
        if os.path.isdir(point):
            mount("exeat", point, "tmpfs", _SAFE | MS_RDONLY, "mode=555")
        else:
            mount(blank, point, None, MS_BIND)


def is_device(path: str) -> bool:
    """Is this a device file of /dev, by its own name there?"""
    return os.path.normpath(path) == path and path.startswith(f"{DEV}/") and _is_device(path)


def is_terminal_of_host(path: str) -> bool:
    """One that cannot be shown: the names of terminals inside are the jail's."""
    return path.startswith(f"{DEV}/pts/") and path not in _OWN


class OwnDevices:
    """What is to be in /dev, found while the host's is still there, and put there when it is not. Raises OSError."""

    def __init__(self, named: Iterable[str], hidden: int = 0) -> None:
        """`hidden` is the number of a device that is not shown, whatever else is asked for."""
        self._terminal = terminal = _own_terminal()
        number = _number_of(terminal)
        wanted = [
            *(f"{DEV}/{name}" for name in _HARMLESS),
            *_computing(),
            *(path for path in named if path not in _OWN),
        ]
        if terminal and not number:
            wanted.append(terminal)  # a console: its name is all that is missing, the command has it open already
        self._has_queues, self._has_terminals = (os.path.isdir(f"{DEV}/{name}") for name in ("mqueue", "pts"))
        self._shown = {
            path: os.open(path, os.O_PATH | os.O_CLOEXEC)
            for path in wanted
            if is_device(path) and os.lstat(path).st_rdev != hidden
        }
        self._held = os.open(terminal, os.O_PATH | os.O_CLOEXEC) if number else -1

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
        with suppress(OSError):  # most machines have none of them
            found += [f"{folder}/{each}" for each in os.listdir(folder) if each.startswith(name)]
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
    for stream in filter(os.isatty, (0, 1, 2)):
        with suppress(OSError):
            return os.ttyname(stream)
    return ""
