"""Standard streams that are files. What was opened for reading can be read, and not be changed.

`exeat run -- COMMAND < ~/.bashrc`: the command gets a descriptor of the real file, not of its own copy. By
/proc/self/fd/0 it could open the file again, to write, and by the descriptor itself change its mode. So the builder
opens it again over a mount that is read-only, which holds for every such way. What was opened for writing is passed on
as it is: others write to it before and after, from where the last one stopped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from exeat.jail.files.kernelfs import read_only
from exeat.jail.libc import MS_BIND, MS_PRIVATE, MS_REC, call, mount
from exeat.jail.process.descriptors import STREAMS, is_without_name

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def hold_read_only() -> dict[int, int]:
    """Replace standard streams that are files opened for reading. Returns which, and where in the file they stand.

    To be called in a mount namespace of our own, while the host's files are there under their names. OSError.
    """
    streams = [number for number in (0, 1, 2) if _is_to_be_held(number)]
    if streams:
        mount(None, "/", None, MS_REC | MS_PRIVATE)  # the host sees nothing of it
    positions = {}
    for number in streams:
        try:
            opened = _open_read_only(number)
        except OSError as error:
            if not _may_change(number):
                continue
            raise OSError(
                errno.EPERM,
                f"{STREAMS[number]} is a file that cannot be kept from being changed ({error.strerror}); "
                "put a pipe between: cat ... |",
            ) from None
        positions[number] = os.lseek(opened, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(opened, number)
        os.close(opened)
    return positions


def moved(positions: dict[int, int]) -> dict[int, int]:
    """Of streams that were replaced: those that have been read from, and where they stand now."""
    now = {number: os.lseek(number, 0, os.SEEK_CUR) for number in positions}
    return {number: place for number, place in now.items() if place != positions[number]}


def _is_to_be_held(number: int) -> bool:
    if not stat.S_ISREG(os.fstat(number).st_mode) or is_without_name(number):
        return False
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _may_change(number: int) -> bool:
    """Rather too often than too seldom: the command has fewer rights than we have here."""
    may_write = os.access(f"/proc/self/fd/{number}", os.W_OK, effective_ids=True)
    return may_write or os.fstat(number).st_uid == os.geteuid()


def _open_read_only(number: int) -> int:
    """The same file, over a mount of its own that cannot be written to, and that nothing else leads to."""
    path = os.readlink(f"/proc/self/fd/{number}")
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _expect_same(handle, number)
        mount(f"/proc/self/fd/{handle}", f"/proc/self/fd/{handle}", None, MS_BIND)
    finally:
        os.close(handle)
    try:
        read_only(path)
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _expect_same(opened, number)
            if not os.fstatvfs(opened).f_flag & os.ST_RDONLY:
                raise OSError(errno.EBUSY, "it was replaced meanwhile")
        except BaseException:
            os.close(opened)
            raise
    finally:
        call("umount2", path, _MNT_DETACH | _UMOUNT_NOFOLLOW)
    return opened


def _expect_same(one: int, other: int) -> None:
    if not os.path.samestat(os.fstat(one), os.fstat(other)):
        raise OSError(errno.ENOENT, "it is not what is found under its name")
