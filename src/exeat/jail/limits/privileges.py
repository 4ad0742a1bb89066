"""Losing privileges for good, and keeping a process's memory to itself.

All of it holds for the calling thread and what it starts: call it while there is one thread. A new user namespace
gives everything back, so this comes after the last one, and the system call filter refuses another.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from exeat.errors import ExeatError
from exeat.jail import libc

_CAP_SETPCAP = 8
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
_CAPABILITY_NUMBERS = range(64)  # as many as version 3 can hold; the kernel knows fewer

# With their locks: NOROOT (uid 0 is no one special), NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE. KEEP_CAPS is locked off.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80
_KEEP_CAPS = 0x10


def drop_all() -> None:
    """Give up every capability, and every way to get one. Raises if anything is left; then nothing may be started.

    A process without CAP_SETPCAP cannot empty its bounding set or lock its securebits. It gains nothing from them
    either: `no_new_privs` makes exec give no capability that is not held already.
    """
    _, permitted, _ = _get_capabilities()
    sealed = bool(permitted >> _CAP_SETPCAP & 1)
    if sealed:
        _set_capabilities(effective=permitted, permitted=permitted)
        libc.prctl(libc.PR_SET_SECUREBITS, (libc.prctl(libc.PR_GET_SECUREBITS) | _SECUREBITS) & ~_KEEP_CAPS)
        _for_each_capability(libc.PR_CAPBSET_DROP)
    libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
    _set_capabilities(effective=0, permitted=0)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    left = _left(sealed=sealed)
    if left:
        raise ExeatError(f"privileges could not be dropped: {', '.join(left)}")


def keep_over_exec() -> None:
    """Keep every capability over the next exec, for a program of ours in a user namespace that it owns."""
    _, permitted, _ = _get_capabilities()
    _set_capabilities(effective=permitted, permitted=permitted, inheritable=permitted)
    for number in _CAPABILITY_NUMBERS:
        if permitted >> number & 1:
            libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_RAISE, number, 0, 0)


def hide_memory() -> None:
    """Keep this process's memory from debuggers of the same user, from /proc, and out of core files.

    Ends at exec. It takes /proc/self away from the user, so id maps come first.
    """
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    if libc.prctl(libc.PR_GET_DUMPABLE) != 0:
        raise ExeatError("the process's memory could not be hidden")


def hide_arguments(title: bytes) -> None:
    """Show `title` as this process's arguments: they are for all to read, and may hold what is not for all."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49
    if 0 < start < end:
        ctypes.memmove(start, title.ljust(end - start, b"\0")[: end - start - 1] + b"\0", end - start)


def _left(*, sealed: bool) -> list[str]:
    """What a process that dropped all still has, read back from the kernel."""
    left = []
    if _get_capabilities() != (0, 0, 0):  # the ambient set cannot hold what is not permitted, so this covers it
        left.append("capabilities")
    if not libc.prctl(libc.PR_GET_NO_NEW_PRIVS):
        left.append("no_new_privs")
    if not sealed:
        return left
    if any(_for_each_capability(libc.PR_CAPBSET_READ)):
        left.append("bounding set")
    if libc.prctl(libc.PR_GET_SECUREBITS) & (_SECUREBITS | _KEEP_CAPS) != _SECUREBITS:
        left.append("securebits")
    return left


def _for_each_capability(option: int) -> list[int]:
    """The answers to a libc.prctl about each capability that the kernel knows."""
    answers: list[int] = []
    try:
        for number in _CAPABILITY_NUMBERS:
            answers.append(libc.prctl(option, number))  # noqa: PERF401 (the last one ends it, by an error)
    except OSError as error:
        if error.errno != errno.EINVAL or not answers:
            raise
    return answers


def _get_capabilities() -> tuple[int, int, int]:
    """The effective, permitted and inheritable sets, a bit for each capability."""
    data = ctypes.create_string_buffer(24)
    libc.call("capget", _CAPABILITY_HEADER, data)
    effective, permitted, inheritable, *high = struct.unpack("=6I", data)
    return effective | high[0] << 32, permitted | high[1] << 32, inheritable | high[2] << 32


def _set_capabilities(*, effective: int, permitted: int, inheritable: int = 0) -> None:
    halves = [[each >> shift & 0xFFFFFFFF for each in (effective, permitted, inheritable)] for shift in (0, 32)]
    data = struct.pack("=6I", *halves[0], *halves[1])
    libc.call("capset", _CAPABILITY_HEADER, data)


# The same numbers on every machine.
_CREATE_RULESET = 444
_RESTRICT_SELF = 446

_CREATE_RULESET_VERSION = 1
_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_SCOPE_SIGNAL = 2
_ABI_WITH_SCOPES = 6  # Linux 6.12


def landlock_abi() -> int:
    """Which version of Landlock the kernel offers. 0 if there is none, or it was switched off at boot."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def scope_abstract_sockets(*, signals: bool = True) -> bool:
    """Keep this thread, and all it starts, from abstract Unix sockets and processes that were there before. For good.

    False, and nothing done, if the kernel is too old. `no_new_privs` must be set. As with every Landlock domain, no
    process outside it can be traced either; inside, debuggers work.
    """
    if landlock_abi() < _ABI_WITH_SCOPES:
        return False
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | (_SCOPE_SIGNAL if signals else 0)
    attributes = struct.pack("=QQQ", 0, 0, scoped)  # no rights to files, no rights to ports, scopes
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True
