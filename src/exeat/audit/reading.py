"""Reading a log without reading all of it: its last rows, the rows since a time, and new ones.

Logs grow to gigabytes, and the user wants to see something at once. Lines are looked for from the end, or by
bisection; half lines and what is no record are passed over. A log that is not there is an empty one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from exeat.audit.parts import MAX_LINE_BYTES, Line, LogPlace, Part, open_part, open_parts, parse

FURTHEST_LOOK_BYTES = 128 * 1024 * 1024
"""How far back a rare line is looked for: a second or two of reading."""

_FIRST_BLOCK_BYTES = 32 * 1024
_BLOCK_BYTES = 512 * 1024
# Writers stamp a line before they have the lock, for which they wait up to 5 s.
_DISORDER_S = 10.0
_STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")

_MOST_BYTES = 8 * 1024 * 1024
# A writer looks every 0.1 s whether the file still has its name; until then it may add to the one that was moved away.
_LAST_LINES_S = 0.3
_ANCHOR_BYTES = 80
_TRIES = 8

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


def lines_since(
    place: LogPlace, since: float, *, until: Part | None = None, skip: Skip | None = None
) -> Iterator[Line]:
    """The lines from the unix time `since` on, oldest first. Raises ConfigError if the log is not a regular file.

    `until`: nothing behind the size that this part knows. `skip`: as in `last_lines`.
    """
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
    """A line whose time cannot be read is shown: better too much than a denial that stays unseen."""
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


class Follower:
    """Reads what is added to a log. Never waits: the caller asks again a moment later.

    `from_end`: only what is added from now on; if the log is not there yet, that is all of it. `part` is the file under
    way, at first with a size up to which nothing will be read. `is_behind`: there is more to read at once.
    """

    def __init__(self, path: str, *, from_end: bool = True, dir_fd: int | None = None) -> None:
        self.is_behind = False
        self._place = LogPlace(path, dir_fd)
        self._offset = 0
        self._rest = b""  # half a line
        self._is_dropped = False  # the line under way: it began before us, or is too long to be a record
        self._anchor = b""  # what stands before the offset, to notice when it no longer does
        self._moved_at = 0.0
        self._last_event = ""
        self.part = open_part(self._place)
        if self.part is not None:
            if from_end:
                self._skip_to_end(self.part)
            self.part.size = self._offset

    def read_new(self) -> list[dict[str, Any]]:
        """The records added since the last call, in order. Raises ConfigError if something else took the log's name."""
        return [line.record for line in self.read_lines()]

    def read_lines(self) -> list[Line]:
        """As `read_new`, with the bytes of each line."""
        lines: list[Line] = []
        left = _MOST_BYTES
        while True:
            if self.part is None:
                self.part = open_part(self._place)
                if self.part is None:
                    return lines
            left -= self._take(self.part, lines, left)
            self.is_behind = left <= 0
            if self.is_behind or not self._has_moved(self.part):
                return lines
            # Once more, now that nothing is added to it, and on to what came after it.
            left -= self._take(self.part, lines, left)
            self.is_behind = left <= 0
            following = None if self.is_behind else self._next_part(self.part)
            if following is None:
                return lines
            self.part.close()
            self.part = following
            self._restart()

    def close(self) -> None:
        if self.part is not None:
            self.part.close()
            self.part = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restart(self) -> None:
        self._offset, self._rest, self._is_dropped, self._anchor = 0, b"", False, b""
        self._moved_at, self._last_event = 0.0, ""

    def _skip_to_end(self, part: Part) -> None:
        """Stand behind the last whole line, so that one that is being written is read when it is whole."""
        start = max(part.size - MAX_LINE_BYTES, 0)
        data = part.read(part.size - start, start)
        newline = data.rfind(b"\n")
        self._offset = start + newline + 1 if newline >= 0 or start == 0 else part.size
        self._is_dropped = newline < 0 and start > 0
        self._anchor = data[: newline + 1][-_ANCHOR_BYTES:]

    def _take(self, part: Part, lines: list[Line], most: int) -> int:
        """Read what was added, at most about `most` bytes. Returns how much it was."""
        size = os.fstat(part.descriptor).st_size
        if size != self._offset + len(self._rest) and not self._is_as_left(part, size):
            self._restart()
        taken = 0
        while taken < most and (data := part.read(_BLOCK_BYTES, self._offset + len(self._rest))):
            taken += len(data)
            self._feed(data, lines)
        return taken

    def _is_as_left(self, part: Part, size: int) -> bool:
        """Whether what has been read is still there. A log that was emptied may have grown again since."""
        if size < self._offset + len(self._rest):
            return False
        before = self._anchor + self._rest
        return part.read(len(before), self._offset - len(self._anchor)) == before

    def _feed(self, data: bytes, lines: list[Line]) -> None:
        data = self._rest + data
        whole = data.rfind(b"\n") + 1
        pieces = data[:whole].split(b"\n")[:-1]
        if pieces and self._is_dropped:
            del pieces[0]
            self._is_dropped = False
        for raw in pieces:
            line = parse(raw)
            if line is not None:
                lines.append(line)
                self._last_event = line.record["event"]
        self._rest = data[whole:]
        self._offset += whole
        if whole:
            self._anchor = data[max(whole - _ANCHOR_BYTES, 0) : whole]
        if len(self._rest) > MAX_LINE_BYTES:
            self._offset += len(self._rest)
            self._anchor = self._rest[-_ANCHOR_BYTES:]
            self._rest, self._is_dropped = b"", True

    def _has_moved(self, part: Part) -> bool:
        """Whether the log's name belongs to another file now, and nothing is added to this one."""
        if self._place.identity() in (None, part.identity):
            self._moved_at = 0.0
            return False
        if self._last_event == "rotated":  # the last line that a writer adds to a file
            return True
        now = time.monotonic()
        self._moved_at = self._moved_at or now
        return now >= self._moved_at + _LAST_LINES_S

    def _next_part(self, part: Part) -> Part | None:
        """The file that came after this one: the log may have been rotated more than once since the last look."""
        for _ in range(_TRIES):
            number = self._number_of(part)
            following = open_part(self._place.numbered(max(number - 1, 0)))
            if following is None or self._number_of(part) == number:
                return following
            following.close()  # Rotated again just now: that was one too far.
        return None

    def _number_of(self, part: Part) -> int:
        """The number that a part has now, 0 if it has none."""
        for number in range(1, self._place.oldest() + 1):
            if self._place.numbered(number).identity() == part.identity:
                return number
        return 0
