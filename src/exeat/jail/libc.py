"""The seam to the C library: system calls that Python 3.11 has no function for, with errors raised as OSError.

No call here may fail silently: each one raises on -1. Importing this must work on every POSIX system, so symbols are
looked up when they are called.
"""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000


PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4


def call(name: str, *args: object) -> int:
    """Call a C function that returns an int. OSError with errno and the function's name if it returns -1.

    Arguments are numbers, bytes, text (encoded as a file name), None for NULL, or ctypes values.
    """
    return _checked(name, getattr(libc, name)(*map(_argument, args)))


def syscall(number: int, *args: object) -> int:
    """Make a system call by number, with all 64 bits of each argument: the C library has no wrapper for many."""
    function = libc.syscall
    function.restype = ctypes.c_long
    return _checked(f"syscall {number}", function(ctypes.c_long(number), *map(_argument, args)))


def unshare(flags: int) -> None:
    """Leave the namespaces named by CLONE_NEW* flags for new ones."""
    call("unshare", flags)


def mount(
    source: str | bytes | None,
    target: str | bytes,
    fstype: str | bytes | None = None,
    flags: int = 0,
    data: str | bytes | None = None,
) -> None:
    """Mount, remount, bind or change propagation, as the flags say."""
    call("mount", source, target, fstype, flags, data)


def prctl(option: int, a2: int = 0, a3: int = 0, a4: int = 0, a5: int = 0) -> int:
    """Ask for or change an attribute of this process. All five arguments are passed: the kernel checks unused ones."""
    return call("prctl", option, a2, a3, a4, a5)


def _argument(value: object) -> object:
    """A number as a full word (ctypes would pass an int and leave the upper half open), text as bytes."""
    if isinstance(value, int):
        return ctypes.c_long(value) if value else None  # NULL is a full word of zeros already, and quicker to make
    if isinstance(value, str):
        return os.fsencode(value)
    return value


def _checked(name: str, result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(result)
