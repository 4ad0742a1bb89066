"""File systems that are doors into the kernel: as the host has them, a program reaches past its namespaces."""

from __future__ import annotations

import errno
import os
import stat
import struct

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
_TO_READ_ONLY = (
    "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore", "efivarfs",
    "selinuxfs", "smackfs", "fusectl", "resctrl", "binfmt_misc",
)  # fmt: skip
# Settings of the kernel that root's program could use to have a program of its choice started outside (core_pattern).
_PROC_OF_ROOT = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")


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
    for point in table.of_kind(*_TO_READ_ONLY):
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
