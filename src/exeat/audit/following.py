"""A log as it grows: what was added since the last look, through rotation, truncation and files not yet there."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any, Self

from exeat.audit.parts import MAX_LINE_BYTES, Line, LogPlace, Part, open_part, parse

_BLOCK_BYTES = 512 * 1024
_MOST_BYTES = 8 * 1024 * 1024
# A writer looks every 0.1 s whether the file still has its name; until then it may add to the one that was moved away.
_LAST_LINES_S = 0.3
_ANCHOR_BYTES = 80
_TRIES = 8


class Follower:
    """Reads what is added to a log. Never waits: whoever uses it asks again a moment later.

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
            # Once more, now that nobody adds to it, and on to what came after it.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Whether the log's name belongs to another file now, and nobody adds to this one any more."""
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
