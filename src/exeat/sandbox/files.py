"""Files in exeat's own folders: checked when opened, locked, and replaced in one step.

Nothing here waits on a pipe or follows a link, whatever was put in the place of a file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from exeat.errors import ConfigError, ExeatError
from exeat.sandbox.home import ownership_fault, refusal

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.005

Stamp = tuple[int, int, int]
# One descriptor is open for each folder on the way down.
MAX_DEPTH = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def file_fault(found: os.stat_result, *, one_name: bool = True) -> str:
    """What is wrong with a file, for an error; "" if nothing is. `one_name`: by a second one, others could reach it."""
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if one_name and found.st_nlink > 1:
        return "it has a second name (a hard link)"
    return ownership_fault(found)


def file_stamp(path: str) -> Stamp | None:
    """What changes with a file, whether it is written or replaced; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(within: int, name: str, shown_as: str, limit: int) -> bytes:
    """All of a file. FileNotFoundError if it is not there; ConfigError if it is not ours or over the limit."""
    with open(_open(within, name, shown_as, os.O_RDONLY), "rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise ConfigError(f"larger than {limit // 1024 // 1024} MiB", where=shown_as, expected="a smaller file")
    return raw


def open_file(within: int, name: str, shown_as: str) -> int:
    """A descriptor, to read. FileNotFoundError if it is not there; ConfigError if it is not ours."""
    return _open(within, name, shown_as, os.O_RDONLY)


def write_file(within: int, name: str, fresh: str, content: bytes, shown_as: str) -> None:
    """Replace a file, or make it, with mode 0600. After a crash at any point it is the old one or the new one, whole.

    `fresh` is the name of the new file until it is complete. The caller holds a lock, so what has that name was
    left by one that died.
    """
    try:
        remove_file(within, fresh)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        with open(os.open(fresh, flags, 0o600, dir_fd=within), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask took away
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, name, src_dir_fd=within, dst_dir_fd=within)
        os.fsync(within)  # else a power cut could bring the old file back
    except OSError as error:
        with suppress(OSError):
            remove_file(within, fresh)
        raise ExeatError(f"{shown_as}: cannot be written: {error.strerror}") from None


def remove_file(within: int, name: str) -> None:
    """Remove a name, if it is there. A link goes, and not what it leads to."""
    try:
        os.unlink(name, dir_fd=within)
    except FileNotFoundError:
        pass


@contextmanager
def locked(within: int, name: str, shown_as: str) -> Iterator[None]:
    """Be the only one who holds the lock of that name. The kernel lets go of it when the holder dies."""
    descriptor = _open(within, name, shown_as, os.O_RDWR | os.O_CREAT)
    try:
        _take(descriptor, shown_as)
        if os.fstat(descriptor).st_nlink == 0:
            raise ConfigError("it was just removed", where=shown_as, expected="another try")
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, shown_as: str) -> None:
    """Wait, but not for ever: a holder that was stopped must not stop all others without a word."""
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise ExeatError(
                    f"{shown_as}: another exeat has held this lock for {_LOCK_WAIT_S:.0f} seconds; is it stopped?"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _open(within: int, name: str, shown_as: str, flags: int) -> int:
    try:
        descriptor = os.open(name, flags | _SAFE, 0o600, dir_fd=within)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise refusal(shown_as, "its folder was just removed") from None
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise refusal(shown_as, "it is a symbolic link") from None
        raise refusal(shown_as, f"it cannot be opened ({error.strerror})") from None
    if fault := file_fault(os.fstat(descriptor)):
        os.close(descriptor)
        raise refusal(shown_as, fault)
    return descriptor


def remove_tree(within: int, name: str) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there. Raises OSError.

    Goes through descriptors: a name that is turned into a link meanwhile leads nowhere else. Stops at another file
    system, and at folders nested deeper than any of ours.
    """
    try:
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=within)
        return
    way: list[_Level] = []
    try:
        way.append(_enter(within, name, found.st_dev))
        while way:
            here = way[-1]
            if here.inner:
                if len(way) > MAX_DEPTH:
                    raise OSError(errno.ELOOP, "folders are nested too deeply", here.inner[-1])
                way.append(_enter(here.descriptor, here.inner.pop(), found.st_dev))
            else:
                os.rmdir(here.name, dir_fd=way[-2].descriptor if len(way) > 1 else within)
                os.close(way.pop().descriptor)
    finally:
        for level in way:
            os.close(level.descriptor)


class _Level(NamedTuple):
    name: str
    descriptor: int
    inner: list[str]  # folders that are still in it


def _enter(within: int, name: str, device: int) -> _Level:
    """Open a folder and remove all that is not a folder from it."""
    descriptor = os.open(name, _DIRECTORY, dir_fd=within)
    try:
        inner = []
        for each in os.listdir(descriptor):
            found = os.stat(each, dir_fd=descriptor, follow_symlinks=False)
            if found.st_dev != device:
                raise OSError(errno.EXDEV, "another file system is mounted there", each)
            if stat.S_ISDIR(found.st_mode):
                inner.append(each)
            else:
                os.unlink(each, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return _Level(name, descriptor, inner)
