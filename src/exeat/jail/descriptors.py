"""Open files that the command inherits. What could lead out of the jail is closed.

A socket is a flow that was opened before any rule; a directory is a door into the host's own view of the
file system. Files, pipes and terminals stay: shells pass them (`<(...)`), and programs expect them.
"""

from __future__ import annotations

import errno
import os
import stat

# Linux major numbers: memory devices (null, zero, random), terminals, pseudo terminals.
_HARMLESS_DEVICES = frozenset((1, 4, 5, *range(136, 144)))


def ensure_standard_streams() -> None:
    """Give a closed standard stream to /dev/null, or the next file opened would be taken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def close_ways_out() -> None:
    """Close what is inherited by the next program and is not plainly harmless."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number > 2 and os.get_inheritable(number) and not _is_harmless(number):
                os.close(number)
        except OSError as error:
            if error.errno != errno.EBADF:  # the one that listed the directory
                raise
    for number in (0, 1, 2):
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EISDIR, f"standard stream {number} is a folder, which would lead out of the jail")


def _is_harmless(number: int) -> bool:
    found = os.fstat(number)
    if stat.S_ISCHR(found.st_mode):
        return os.major(found.st_rdev) in _HARMLESS_DEVICES
    return stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
