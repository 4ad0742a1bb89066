"""Open files that the command inherits. What could lead out of the jail is closed.

A socket is a flow that was opened before any rule; a directory is a door into the host's own view of the
file system. Files, pipes and terminals stay: shells pass them (`<(...)`), and programs expect them.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable

_STREAMS = ("standard input", "standard output", "standard error")
# Linux numbers: null, zero, full, random, urandom; and everything that is a terminal or a pseudo terminal.
_HARMLESS_MEMORY = frozenset((3, 5, 7, 8, 9))
_TERMINALS = frozenset((4, 5, *range(136, 144)))


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


Identity = tuple[int, int]  # device and inode


def identities(paths: Iterable[str]) -> frozenset[Identity]:
    """Which files these are, whatever they are called."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue  # there is no such file
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


class Hidden:
    """What the command must not have open: some files, and all that is in some folders, by whatever name."""

    def __init__(self, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        self._files = identities(files)
        self._folders = tuple(folders)
        self._in_folders: frozenset[Identity] | None = None  # looked for if there is something to compare

    def holds(self, number: int) -> bool:
        found = os.fstat(number)
        if self._in_folders is None:
            self._in_folders = identities(
                os.path.join(top, name)
                for folder in self._folders
                for top, _, names in os.walk(os.path.realpath(folder))
                for name in names
            )
        return (found.st_dev, found.st_ino) in self._files | self._in_folders


def close_ways_out(hidden: Hidden | None = None) -> None:
    """Close what is inherited by the next program and is not plainly harmless. What is `hidden` is not."""
    hidden = hidden or Hidden()
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number <= 2 or not os.get_inheritable(number):
                continue
            if not _is_harmless(number) or hidden.holds(number):
                os.close(number)
        except OSError as error:
            if error.errno != errno.EBADF:  # the one that listed the directory
                raise
    for number, name in enumerate(_STREAMS):
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode) and hidden.holds(number):
            raise OSError(
                errno.EPERM, f"{name} is a file that is hidden from the command; put a pipe between: cat ... |"
            )
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, f"{name} is a folder, which would lead out of the jail")
        if stat.S_ISSOCK(mode) and not _is_plain_stream(number):
            raise OSError(
                errno.ENOTSOCK, f"{name} is a socket that can be led elsewhere; put a pipe between: ... | cat"
            )


def _is_plain_stream(number: int) -> bool:
    """A connected Unix stream goes where it goes. An Internet or datagram socket can be connected anew, to anywhere."""
    with socket.socket(fileno=os.dup(number)) as stream:
        try:
            stream.getpeername()
        except OSError:
            return False
        return stream.family == socket.AF_UNIX and stream.type in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)


def _is_harmless(number: int) -> bool:
    found = os.fstat(number)
    if stat.S_ISCHR(found.st_mode):
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return major in _TERMINALS or (major == 1 and minor in _HARMLESS_MEMORY)
    return stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
