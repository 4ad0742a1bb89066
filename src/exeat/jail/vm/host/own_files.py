"""Cached files in a folder of the user's. All can be made again, so they are never trusted much.

A folder or a file that belongs to another user, that others may write to, or that is a link, counts as not there.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from exeat.paths import DIRECTORY

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FRESH: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A file system, or a kernel, that has no files without a name.
_NO_UNNAMED: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_UNFINISHED: Final = ".new-"
_GIVEN_UP_S: Final = 3600.0  # a file that is still being written after so long belongs to a process that died
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _open_folder(folder: str) -> int:
    """Raises OSError."""
    descriptor = os.open(folder, DIRECTORY)
    if not _is_ours(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(f"{folder} is not this user's alone")
    return descriptor


def _make_folder(folder: str) -> None:
    """And those on the way to it, which are for this user alone as well: the sandboxes' are among them."""
    above = os.path.dirname(folder)
    if above != folder and not os.path.isdir(above):
        _make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def open_own(folder: str, name: str) -> int | None:
    """To read. None: it is not there, or not as we would have left it."""
    try:
        within = _open_folder(folder)
    except OSError:
        return None
    try:
        descriptor = os.open(name, _READ, dir_fd=within)
    except OSError:
        return None
    finally:
        os.close(within)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and _is_ours(found):
        return descriptor
    os.close(descriptor)
    return None


def read_own(folder: str, name: str, most: int) -> bytes:
    """Its first bytes; none if it is not there."""
    descriptor = open_own(folder, name)
    if descriptor is None:
        return b""
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def write_own(folder: str, name: str, content: bytes) -> None:
    """All of it or nothing, whoever else writes it at the same time. Raises OSError."""
    _make_folder(folder)
    within = _open_folder(folder)
    fresh = f"{_UNFINISHED}{os.urandom(8).hex()}"
    try:
        descriptor, has_name = _open_fresh(within, fresh)
        try:
            os.fchmod(descriptor, 0o600)  # whatever the umask took away
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
            if not has_name:
                os.link(f"/proc/self/fd/{descriptor}", fresh, dst_dir_fd=within, follow_symlinks=True)
        finally:
            os.close(descriptor)
        os.rename(fresh, name, src_dir_fd=within, dst_dir_fd=within)
    except BaseException:
        _remove(fresh, within)
        raise
    finally:
        os.close(within)


def _open_fresh(within: int, fresh: str) -> tuple[int, bool]:
    """And whether it has a name yet: without one until it is whole, who is killed while it writes leaves nothing."""
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=within), False
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
        return os.open(fresh, _FRESH, 0o600, dir_fd=within), True


def remove_own(folder: str, name: str) -> None:
    """If it is there."""
    try:
        within = _open_folder(folder)
    except OSError:
        return
    try:
        _remove(name, within)
    finally:
        os.close(within)


def keep_newest(folder: str, beginning: str, count: int) -> None:
    """Of the files whose names begin so. Also gone is what processes left that died while they wrote."""
    try:
        within = _open_folder(folder)
    except OSError:
        return
    try:
        files = [(_age_rank(name, within), name) for name in os.listdir(within)]
        newest = max((when for when, _ in files), default=0.0)
        ranked = sorted((each for each in files if each[1].startswith(beginning)), reverse=True)
        dead = [name for when, name in files if name.startswith(_UNFINISHED) and when < newest - _GIVEN_UP_S]
        for name in [*(name for _, name in ranked[count:]), *dead]:
            _remove(name, within)
    finally:
        os.close(within)


def _age_rank(name: str, within: int) -> float:
    try:
        return os.stat(name, dir_fd=within, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _remove(name: str, within: int) -> None:
    try:
        os.unlink(name, dir_fd=within)
    except OSError:
        pass
