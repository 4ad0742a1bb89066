"""A log on disk for those who read it: the file, its rotated parts beside it, and lines as records.

Nothing here follows a link, waits for a pipe, or believes that a line is what it should be.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from exeat.errors import ConfigError

MAX_LINE_BYTES = 256 * 1024
"""More than any line that is written; what is longer is no record."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ADVICE = {
    errno.ELOOP: "it is a symbolic link: name the file itself",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EACCES: "no permission to read it",
    errno.ENXIO: "it is a socket or a device, not a log",
}


class Line(NamedTuple):
    """A record and the bytes it was read from, without the newline."""

    raw: bytes
    record: dict[str, Any]


class LogPlace(NamedTuple):
    """Where a log is. With `dir_fd`, a folder of ours, `path` is a name in it, and the file must be ours too."""

    path: str
    dir_fd: int | None = None

    def numbered(self, number: int) -> LogPlace:
        """The part that was rotated out `number` times; 0 is the log itself."""
        return LogPlace(f"{self.path}.{number}", self.dir_fd) if number else self

    def oldest(self) -> int:
        """The highest number of a rotated part."""
        folder, slash, name = self.path.rpartition("/")
        where = self.dir_fd if self.dir_fd is not None else f"{folder}/" if slash else "."
        try:
            beside = os.listdir(where)  # noqa: PTH208 - pathlib costs 5 ms
        except OSError:
            return 0
        start = f"{name}."
        digits = (other[len(start) :] for other in beside if other.startswith(start))
        # No more than a rotation could ever make: a hostile name must not make us count to it.
        return max((int(each) for each in digits if each.isascii() and each.isdigit() and len(each) <= 4), default=0)

    def identity(self) -> tuple[int, int] | None:
        """Which file has this name now."""
        try:
            found = os.stat(self.path, dir_fd=self.dir_fd, follow_symlinks=False)
        except OSError:
            return None
        return found.st_dev, found.st_ino


class Part:
    """One file of a log, open. Knows how far it went when it was opened; never reads past that by itself."""

    def __init__(self, descriptor: int, identity: tuple[int, int], size: int) -> None:
        self.descriptor = descriptor
        self.identity = identity
        self.size = size

    def read(self, count: int, offset: int) -> bytes:
        """Exactly these bytes, or fewer where the file ends."""
        pieces = []
        while count > 0 and (piece := os.pread(self.descriptor, count, offset)):
            pieces.append(piece)
            count -= len(piece)
            offset += len(piece)
        return b"".join(pieces)

    def duplicate(self) -> Part:
        return Part(os.dup(self.descriptor), self.identity, self.size)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_part(place: LogPlace) -> Part | None:
    """Open a file of a log. None if it is not there; ConfigError if it is there and must not be read as one."""
    try:
        descriptor = os.open(place.path, _FLAGS, dir_fd=place.dir_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(place, _ADVICE.get(error.errno or 0) or error.strerror or str(error)) from None
    found = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "it is not a regular file"
    elif place.dir_fd is not None and found.st_uid != os.geteuid():
        problem = f"it belongs to another user (uid {found.st_uid})"
    elif place.dir_fd is not None and found.st_mode & 0o022:
        problem = "other users may write to it (chmod go-w it)"
    if problem:
        os.close(descriptor)
        raise _refusal(place, problem)
    return Part(descriptor, (found.st_dev, found.st_ino), found.st_size)


def open_parts(place: LogPlace) -> Iterator[Part]:
    """The files of a log, the newest first. Each is closed when the next is asked for.

    A rotation in between moves every file one number up: what has been seen is known by what it is, not by its name.
    """
    seen: set[tuple[int, int]] = set()
    number = 0
    while number <= place.oldest():
        part = open_part(place.numbered(number))
        if part is not None:
            with part:
                if part.identity not in seen:  # after a crash in a rotation one file has two names
                    seen.add(part.identity)
                    yield part
        number += 1


def parse(raw: bytes) -> Line | None:
    """The record of a line, or None if it is none. Its fields may have any type: it is only known to be an event."""
    if not raw.startswith(b'{"') or len(raw) > MAX_LINE_BYTES:
        return None
    try:
        record = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    return Line(raw, record)


def _refusal(place: LogPlace, why: str) -> ConfigError:
    return ConfigError(f"cannot read the log {place.path!r}: {why}")
