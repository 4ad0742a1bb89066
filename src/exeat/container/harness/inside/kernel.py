"""System calls that the harness needs and Python does not offer."""

from __future__ import annotations

import ctypes
import os
import resource
import struct

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
MAX_DESCRIPTORS = 1024
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def limit(kind: int, value: int) -> None:
    """For this process and its children, for good."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def has_scopes() -> bool:
    """Whether the kernel can keep a process from signalling what it did not start: Linux 6.12."""
    return int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))) >= 6


def scope_signals() -> None:
    """From here on, this process and its children can signal each other, and reach each other's sockets, alone."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    attributes = struct.pack("QQQ", 0, 0, 0b11)  # no files, no ports; abstract sockets and signals
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if rules < 0 or _libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint(0)) != 0:
        raise OSError(ctypes.get_errno(), "landlock")
    os.close(rules)


def count_oom_kills() -> int:
    """How often the kernel ended a process of this container because its memory was full, as far as it says."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, ValueError):
            continue
    return 0
