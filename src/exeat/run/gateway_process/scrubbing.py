"""Removes variables from this process for good: from /proc, and from the memory that children copy."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, MutableMapping

_ENV_START, _ENV_END = 47, 48  # of /proc/self/stat, counted from the field behind the program's name


class ClosedMemory:
    """While it lasts there is no core file of this process, and no one of the same user looks into it."""

    def __enter__(self) -> None:
        self._before = self._get()
        self._set(0)

    def __exit__(self, *error: object) -> None:
        self._set(self._before)

    def _get(self) -> int:
        if sys.platform != "linux":
            return 0
        from exeat.jail.libc import PR_GET_DUMPABLE, prctl  # Linux only

        return prctl(PR_GET_DUMPABLE)

    def _set(self, value: int) -> None:
        if sys.platform == "linux" and value in (0, 1):  # 2 is the kernel's to set
            from exeat.jail.libc import PR_SET_DUMPABLE, prctl  # Linux only

            prctl(PR_SET_DUMPABLE, value)


def scrub_environment(names: Iterable[str], given: MutableMapping[bytes, bytes] | None = None) -> None:
    """Forget these variables: in `os.environ`, in the memory it was read from, and in /proc/self/environ.

    `given` is an environment for the command that is held next to our own. They are taken out of it as well.
    """
    wanted = {os.fsencode(name) for name in names}
    for held in (getattr(os.environ, "_data", {}), given or {}):
        for name in wanted:
            value = held.pop(name, None)
            if isinstance(value, bytes) and sys.implementation.name == "cpython" and len(value) > 1:
                # Freed memory keeps its content. No one else has this object: what is decoded from it is another.
                ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
    if sys.platform == "linux" and wanted:
        _wipe_initial(wanted)
        _wipe_set(wanted)


def _wipe_set(names: set[bytes]) -> None:
    """The copies that the C library has made of variables that were set since, as all are in a fork of a starter."""
    libc = ctypes.CDLL(None)
    libc.getenv.argtypes, libc.getenv.restype = (ctypes.c_char_p,), ctypes.c_void_p
    libc.strlen.argtypes, libc.strlen.restype = (ctypes.c_void_p,), ctypes.c_size_t
    for name in names:
        if place := libc.getenv(name):
            ctypes.memset(place, 0, libc.strlen(place))
            os.unsetenv(name)


def _wipe_initial(names: set[bytes]) -> None:
    """The strings that the kernel put on the stack at the start, which is what /proc shows.

    They are looked at where they are: any object made of one would leave a copy in freed memory.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    position, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < position < end:
        return
    libc = ctypes.CDLL(None)
    libc.strnlen.argtypes, libc.strnlen.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_size_t
    libc.strncmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    while position < end:
        length: int = libc.strnlen(position, end - position)
        for name in names:
            start = len(name) + 1
            if length > start and libc.strncmp(position, name + b"=", start) == 0:
                ctypes.memset(position + start, 0, length - start)
                break
        position += length + 1
