"""File systems that are doors into the kernel: as the host has them, a program reaches past its namespaces."""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct

from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT, mount, syscall
from exeat.jail.mounttable import MountTable

_SAFE = MS_NOSUID | MS_NODEV | MS_NOEXEC
_SYS_MOUNT_SETATTR = 442  # the same on every machine
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_ATTR_NODEV = 4
_READ_ONLY = struct.pack("=QQQQ", 1, 0, 0, 0)

# A control group can kill and freeze what is outside; sysfs and its kin go by uid, not by capability.
_TO_READ_ONLY = (
    "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore", "efivarfs",
    "selinuxfs", "smackfs", "fusectl", "resctrl", "binfmt_misc",
)  # fmt: skip
# Settings of the kernel that root's program could use to have a program of its choice started outside (core_pattern).
_PROC_OF_ROOT = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
_CONSOLES, _SCREENS = 4, 7  # device numbers: /dev/tty1 and /dev/ttyS0; /dev/vcs1
_FIRST_SERIAL = 64
_ROOT_DEVICES = ("mem", "kmem", "port", "kmsg", "console")


def read_only(path: str) -> None:
    """Make one mount read-only and change nothing else of it."""
    try:
        syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), 0, _READ_ONLY, len(_READ_ONLY))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before Linux 5.12. What the mount had must be said again.
        flags = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def close_doors(blank: str, *, is_root: bool) -> None:
    """Take the host's control groups, kernel settings, message queues and, from root, disks away. For the builder.

    `blank` is a file that nobody may open, to be put over others.
    """
    table = MountTable()
    for point in table.of_kind(*_TO_READ_ONLY):
        if os.path.lexists(point):  # else out of reach already
            read_only(point)
    for point in table.of_kind("proc"):
        if point != "/proc" and os.path.isdir(point):  # a chroot's, for example: it shows the host's processes
            mount("exeat", point, "tmpfs", _SAFE | MS_RDONLY, "mode=555")
    for point in table.of_kind("mqueue"):
        if os.path.lexists(point):
            mount("mqueue", point, "mqueue", _SAFE)  # shows the queues of the jail's own IPC namespace

    if is_root:
        _keep_devices_to_dev()
        for path in _devices_of_root():
            mount(blank, path, None, MS_BIND)


def _keep_devices_to_dev() -> None:
    """A file that stands for a disk can be anywhere: in a chroot, in a copy of /dev. Only in /dev it is one.

    Before Linux 5.12 the kernel cannot do this for all mounts at once, and it stays as it is: docs/limits.md.
    """
    if not os.path.ismount("/dev"):
        mount("/dev", "/dev", None, MS_BIND | MS_REC)
    try:
        _set_nodev("/", _ATTR_NODEV, 0, _AT_RECURSIVE)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return
        raise
    table = MountTable()
    for point in {"/dev", *table.points_below("/dev"), *table.of_kind("devpts")}:
        if os.path.lexists(point):
            _set_nodev(point, 0, _ATTR_NODEV, 0)


def _set_nodev(path: str, on: int, off: int, flags: int) -> None:
    change = struct.pack("=QQQQ", on, off, 0, 0)
    syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, change, len(change))


def _devices_of_root() -> list[str]:
    """Disks, memory, the kernel's log, the console: files of root's, which it needs no capability to open."""
    found = [f"/dev/{name}" for name in _ROOT_DEVICES]
    for folder in ("/dev", "/dev/mapper"):
        try:
            with os.scandir(folder) as entries:
                found += [entry.path for entry in entries if _is_disk(entry)]
        except OSError:
            continue  # no such folder
    return [path for path in found if os.path.exists(path)]


def _is_disk(entry: os.DirEntry[str]) -> bool:
    common = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink()
    return not common and stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode)


def mount_proc(*, is_root: bool) -> None:
    """A /proc that shows the jail's processes only. To be called by a process inside the PID namespace."""
    mount("proc", "/proc", "proc", _SAFE)
    if is_root:
        for name in _PROC_OF_ROOT:
            path = f"/proc/{name}"
            if os.path.exists(path):
                mount(path, path, None, MS_BIND)
                read_only(path)


def hide_terminal(device: int, blank: str) -> None:
    """Take the caller's terminal away, by whatever name: the command has one of its own. For the builder.

    Terminals under /dev/pts are left to `give_own_terminals`. A console can also be reached as the one that is shown
    just now, and by its screen's memory.
    """
    for point in MountTable().of_kind("devpts"):
        if point == "/dev/pts" or not os.path.exists(point):
            continue
        if os.path.isdir(point):
            mount("exeat", point, "tmpfs", _SAFE | MS_RDONLY, "mode=555")
        else:
            mount(blank, point, None, MS_BIND)  # /dev/console in a container is such a one
    is_console = os.major(device) == _CONSOLES and os.minor(device) < _FIRST_SERIAL
    with os.scandir("/dev") as entries:
        nodes = [entry for entry in entries if not entry.is_symlink() and not entry.is_dir()]
    for node in nodes:
        found = node.stat(follow_symlinks=False)
        if not stat.S_ISCHR(found.st_mode):
            continue
        is_alias = found.st_rdev == os.makedev(_CONSOLES, 0) or os.major(found.st_rdev) == _SCREENS
        if found.st_rdev == device or (is_console and is_alias):
            mount(blank, node.path, None, MS_BIND)


def give_own_terminals() -> int:
    """A devpts of the jail's own, with the caller's terminal in it and no other. Gives a descriptor to be kept open.

    Other windows of the same user can be read and written by name: keys stolen, escape sequences sent.
    """
    if not os.path.isdir("/dev/pts"):
        return -1  # a machine without terminals
    own = _own_terminal()
    held = os.open(own, os.O_PATH | os.O_CLOEXEC) if own else -1
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    if held < 0:
        return -1
    # The file system makes no files but terminals, so make one that has the number of ours, and put ours over it.
    number = int(os.path.basename(own))
    masters: list[int] = []
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            while len(masters) <= number:
                masters.append(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
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


def _own_terminal() -> str:
    """The path of the terminal on a standard stream, "" if there is none with a number of its own."""
    for stream in (0, 1, 2):
        try:
            if os.isatty(stream):
                name = os.ttyname(stream)
                if name.startswith("/dev/pts/") and name[9:].isdigit():
                    return name
        except OSError:
            continue
    return ""
