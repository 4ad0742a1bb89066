"""Reading a log without reading all of it: its last rows, what came since a moment, and what comes next.

Logs grow to gigabytes, and somebody who looks wants to see something at once. Lines are looked for from the end, or by
bisection; half lines and what is no record are passed over. A log that is not there is an empty one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from exeat.audit.following import Follower
from exeat.audit.parts import MAX_LINE_BYTES, Line, LogPlace, Part, open_parts, parse

__all__ = ["FURTHEST_LOOK_BYTES", "Follower", "Last", "Line", "last_lines", "lines_since", "read_last", "read_since"]

FURTHEST_LOOK_BYTES = 128 * 1024 * 1024
"""How far back somebody is looked for who is rarely there: a second or two of reading."""

_FIRST_BLOCK_BYTES = 32 * 1024
_BLOCK_BYTES = 512 * 1024
# Writers stamp a line before they have the lock, for which they wait up to 5 s.
_DISORDER_S = 10.0
_STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")

Keep = Callable[[dict[str, Any]], bool]
Skip = Callable[[bytes], bool]


class Last(NamedTuple):
    """The last lines, newest last. `complete`: nothing older was left unread for lack of patience."""

    lines: list[Line]
    complete: bool


def read_last(path: str, count: int, keep: Keep | None = None, *, dir_fd: int | None = None) -> list[dict[str, Any]]:
    """The last `count` records that `keep` wants, newest last. Goes on in rotated parts, up to a bound.

    `keep` is asked from the newest to the oldest. Raises ConfigError if the log is not a regular file.
    """
    return [line.record for line in last_lines(LogPlace(path, dir_fd), count, keep).lines]


def last_lines(
    place: LogPlace, count: int, keep: Keep | None = None, *, until: Part | None = None,
    skip: Skip | None = None, most_bytes: int = FURTHEST_LOOK_BYTES,
) -> Last:  # fmt: skip
    """As `read_last`, with the bytes of each line. `until`: nothing behind the size that this part knows.

    `skip` spares a line from being decoded, which takes nearly all of the time: where few are wanted that is seconds.
    """
    found: list[Line] = []
    left = most_bytes
    if count <= 0:
        return Last(found, complete=True)
    for part in _parts(place, until):
        for lines, size in _backwards(part):
            if left <= 0:
                return Last(found[::-1], complete=False)
            left -= size
            for raw in reversed(lines):
                line = parse(raw) if skip is None or not skip(raw) else None
                if line is not None and (keep is None or keep(line.record)):
                    found.append(line)
                    if len(found) == count:
                        return Last(found[::-1], complete=True)
    return Last(found[::-1], complete=True)


def read_since(path: str, since: float, *, dir_fd: int | None = None) -> Iterator[dict[str, Any]]:
    """The records from the unix time `since` on, oldest first. Raises ConfigError if the log is not a regular file."""
    for line in lines_since(LogPlace(path, dir_fd), since):
        yield line.record


def lines_since(
    place: LogPlace, since: float, *, until: Part | None = None, skip: Skip | None = None
) -> Iterator[Line]:
    """As `read_since`, with the bytes of each line. `until`: nothing behind the size that this part knows."""
    wanted, early = stamp(since), stamp(since - _DISORDER_S)
    parts: list[tuple[Part, int]] = []
    try:
        for part in _parts(place, until):
            start = _first_at(part, early)
            parts.append((part.duplicate(), start))
            if start > 0:
                break  # Everything in older parts is older.
        while parts:
            part, start = parts.pop()
            with part:
                for raw in _forwards(part, start, part.size):
                    line = parse(raw) if skip is None or not skip(raw) else None
                    if line is not None and _is_since(line, wanted):
                        yield line
    finally:
        for part, _ in parts:
            part.close()


def stamp(moment: float) -> str:
    """A unix time as records have it. Stamps sort as the times do."""
    moment = min(max(moment, 0.0), 253402300799.0)  # 1970 to 9999
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1_000_000):06d}Z"


def _is_since(line: Line, wanted: str) -> bool:
    """Whose time cannot be read is shown: better too much than a denial that nobody sees."""
    written = line.record.get("time")
    return not isinstance(written, str) or written >= wanted or not _STAMP.match(written)


def _parts(place: LogPlace, until: Part | None) -> Iterator[Part]:
    if until is None:
        yield from open_parts(place)
        return
    yield until
    met = False
    for part in open_parts(place):
        # What came into being after `until` was opened stands before it, and is not wanted.
        if part.identity == until.identity:
            met = True
        elif met:
            yield part


def _backwards(part: Part) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines, block by block from the last, oldest first in each, and how many bytes the block took."""
    end, block = part.size, _FIRST_BLOCK_BYTES
    tail = b""  # of a line that begins further back
    is_dropped = True  # that line: at first what stands behind the last newline, half a line
    while end > 0:
        start = max(end - block, 0)
        pieces = part.read(end - start, start).split(b"\n")
        pieces[-1] += tail
        if len(pieces) > 1:
            if is_dropped:
                pieces.pop()
            tail, is_dropped = pieces.pop(0), False
        else:
            tail = pieces.pop()
        if len(tail) > MAX_LINE_BYTES:
            tail, is_dropped = b"", True
        if start == 0 and not is_dropped:
            pieces.insert(0, tail)
        yield pieces, end - start
        end, block = start, min(block * 4, _BLOCK_BYTES)


def _forwards(part: Part, start: int, end: int) -> Iterator[bytes]:
    """Whole lines from `start`, where a line begins, up to `end`."""
    rest, is_dropped = b"", False
    while start < end and (data := part.read(min(_BLOCK_BYTES, end - start), start)):
        start += len(data)
        pieces = (rest + data).split(b"\n")
        rest = pieces.pop()
        if pieces and is_dropped:
            del pieces[0]
            is_dropped = False
        if len(rest) > MAX_LINE_BYTES:
            rest, is_dropped = b"", True
        yield from pieces


def _first_at(part: Part, early: str) -> int:
    """Where to begin: a line begins there, and all lines before it are older than `early`, as far as times grow."""
    low, high = 0, part.size
    while high - low > _FIRST_BLOCK_BYTES:
        middle = (low + high) // 2
        found = _stamped_after(part, middle, high)
        if found is not None and found[1] < early:
            low = found[0]
        else:
            high = middle
    return low


def _stamped_after(part: Part, offset: int, end: int) -> tuple[int, str] | None:
    """The first line with a time that begins after `offset`, and that time."""
    data = part.read(min(end - offset, _FIRST_BLOCK_BYTES), offset)
    if b"\n" not in data:
        data += part.read(min(end - offset - len(data), MAX_LINE_BYTES), offset + len(data))
    begin = data.find(b"\n") + 1
    while begin and (stop := data.find(b"\n", begin)) >= 0:
        line = parse(data[begin:stop])
        written = line.record.get("time") if line is not None else None
        if isinstance(written, str) and _STAMP.match(written):
            return offset + begin, written
        begin = stop + 1
    return None
