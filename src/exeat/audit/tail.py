"""Where a log file ends: its last whole line, and what lies after it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from exeat.audit.chain import GENESIS, parse_line

_FIRST_LOOK_BYTES = 8 * 1024
_FURTHEST_LOOK_BYTES = 8 * 1024 * 1024
_BEGINNING = b'{"seq":1,"chain":"f'


@dataclass(frozen=True, slots=True)
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
        data = _pread(fd, size - start, start)
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


def _pread(fd: int, count: int, offset: int) -> bytes:
    parts = []
    while count > 0 and (part := os.pread(fd, count, offset)):
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)
