"""The state that a child process inherits from this one. A process that was started earlier may differ.

The calling thread's, because that is what a process that is started gets, and some things can differ between threads.
"""

# Asked before each run, where pathlib would take longer than the kernel.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import resource
import sys
from typing import Final

_SELF: Final = "/proc/thread-self"
# Users, groups, capabilities, and all that is given up for good; signals that are ignored; processors.
_STATUS: Final = (
    b"Uid:", b"Gid:", b"Groups:", b"CapInh:", b"CapPrm:", b"CapEff:", b"CapBnd:", b"CapAmb:", b"NoNewPrivs:",
    b"Seccomp:", b"Seccomp_filters:", b"SigIgn:", b"Cpus_allowed:", b"Mems_allowed:",
)  # fmt: skip
# Those of the C library's own. It has them for itself from the first thread on, whatever our parent ignored.
_OF_THREADS: Final = 1 << 31 | 1 << 32
_LIMITS: Final = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))
# What a program takes in when it starts, and not later. No value of these is a secret.
AT_START: Final = (
    "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LOCPATH", "GCONV_PATH", "TZ", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "OPENSSL_CONF", "OPENSSL_MODULES",
)  # fmt: skip
UMASK: Final = b"Umask:"
_READ: Final = 1 << 16


def environ_at_start() -> dict[str, str]:
    return {name: os.environ[name] for name in AT_START if name in os.environ}


def umask() -> int:
    """That of this process, without changing it, as `os.umask` would for a moment and all threads."""
    for line in _read("status").split(b"\n"):
        if line.startswith(UMASK):
            return int(line[len(UMASK) :], 8)
    raise OSError("/proc/thread-self/status does not show the umask")


def surroundings() -> tuple[object, ...]:
    """Two processes that are started in the same surroundings have the same of all that they are not told."""
    root = os.stat("/")
    return (
        os.getpid(),  # a fork of the program is another program
        sys.executable,
        tuple(_without_threads(line) for line in _read("status").split(b"\n") if line.startswith(_STATUS)),
        tuple(os.readlink(f"{_SELF}/ns/{name}") for name in sorted(os.listdir(f"{_SELF}/ns"))),
        (root.st_dev, root.st_ino),
        _read("cgroup"),
        _read("attr/current"),
        _read("oom_score_adj"),
        _read("personality"),
        _read("coredump_filter"),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        tuple(os.sched_getparam(0)),
        tuple(resource.getrlimit(each) for each in _LIMITS),
        tuple(environ_at_start().items()),
    )


def _without_threads(line: bytes) -> bytes:
    name, _, value = line.partition(b"\t")
    return b"%b\t%x" % (name, int(value, 16) & ~_OF_THREADS) if name == b"SigIgn:" else line


def _read(name: str) -> bytes:
    try:
        file = os.open(f"{_SELF}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""  # the kernel has none of it
    parts = [b""]
    try:
        while part := os.read(file, _READ):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(file)
    return b"".join(parts)
