"""Reading a log on disk: the file, its rotated parts, lines as records, and the end of the file.

Nothing here follows a link, waits for a pipe, or believes that a line is what it should be.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from exeat.audit.chain import GENESIS, parse_line
from exeat.errors import ConfigError
from exeat.values import frozen

MAX_LINE_BYTES = 256 * 1024
"""What is longer is no record: a dozen fields of 300 characters, 12 bytes each at worst, are 43 KB."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ADVICE = {
    errno.ELOOP: "it is a symbolic link: name the file itself",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EACCES: "no permission to read it",
    errno.ENXIO: "it is a socket or a device, not a log",
}
_FIRST_LOOK_BYTES = 8 * 1024
_FURTHEST_LOOK_BYTES = 8 * 1024 * 1024
_BEGINNING = b'{"seq":1,"chain":"f'


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
        """The highest number of a rotated part; 0 if there is none."""
        return max(rotated_numbers(self.path, self.dir_fd), default=0)

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
        return _read(self.descriptor, count, offset)

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


def rotated_numbers(path: str, dir_fd: int | None = None) -> list[int]:
    """The numbers of a log's rotated parts, the newest first. No more than a rotation could make: four digits."""
    folder, slash, name = path.rpartition("/")
    where = dir_fd if dir_fd is not None else f"{folder}/" if slash else "."
    try:
        names = os.listdir(where)
    except OSError:
        return []
    part = re.compile(re.escape(name) + r"\.([1-9][0-9]{0,3})")
    return sorted(int(found[1]) for each in names if (found := part.fullmatch(each)))


def open_part(place: LogPlace) -> Part | None:
    """Open a file of a log. None if it is not there; ConfigError if it is there and must not be read as one."""
    try:
        descriptor = os.open(place.path, _FLAGS, dir_fd=place.dir_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(place, _ADVICE.get(error.errno or 0) or error.strerror or str(error)) from None
    found = os.fstat(descriptor)
    if problem := file_problem(found, must_be_ours=place.dir_fd is not None):
        os.close(descriptor)
        raise _refusal(place, problem)
    return Part(descriptor, (found.st_dev, found.st_ino), found.st_size)


def file_problem(found: os.stat_result, *, must_be_ours: bool = True) -> str:
    """Why a file is not to be used as a log; "" if it may be."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if must_be_ours and found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid})"
    if must_be_ours and found.st_mode & 0o022:
        return "other users may write to it (chmod go-w it)"
    return ""


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


@frozen
class Tail:
    """The last whole line, and the bytes after it that are not one.

    `unended` means that only the newline of that line is missing.
    """

    seq: int
    chain: str
    head: str
    event: str = ""
    junk: bytes = b""
    unended: bool = False


def read_tail(fd: int, size: int) -> Tail | None:
    """How a file of `size` bytes ends, or None if it is not a log of ours as far back as we look."""
    look = _FIRST_LOOK_BYTES
    while True:
        start = max(size - look, 0)
        data = _read(fd, size - start, start)
        tail = _last_line(data, whole=start == 0)
        if tail is not None:
            return tail
        if start == 0:
            return Tail(0, "", GENESIS, junk=data) if _begins_a_log(data) else None
        if look >= _FURTHEST_LOOK_BYTES:
            return None
        look *= 8


def _last_line(data: bytes, *, whole: bool) -> Tail | None:
    end = data.rfind(b"\n") + 1
    if (line := parse_line(data[end:] + b"\n")) is not None and (end or whole):
        return Tail(line.seq, line.chain, line.stated, line.event, unended=True)
    while end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        if begin == 0 and not whole:
            return None  # The look may have begun in the middle of this line.
        if (line := parse_line(data[begin:end])) is not None:
            return Tail(line.seq, line.chain, line.stated, line.event, data[end:])
        end = begin
    return None


def _begins_a_log(data: bytes) -> bool:
    """A first line that a crash cut short. A file system may also have left its length but only zeros."""
    return data.startswith(_BEGINNING) or _BEGINNING.startswith(data) or not data.strip(b"\0")


def _read(descriptor: int, count: int, offset: int) -> bytes:
    """Exactly these bytes, or fewer where the file ends."""
    pieces = []
    while count > 0 and (piece := os.pread(descriptor, count, offset)):
        pieces.append(piece)
        count -= len(piece)
        offset += len(piece)
    return b"".join(pieces)
