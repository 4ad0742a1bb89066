"""Rows in columns. On a terminal no line is ever longer than it is wide: what wraps could pass for a row."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from exeat.cli.logs.rows import ALLOWED, BLOCKED, CLOSED, EVENT, TROUBLE, Row
from exeat.cli.screen import DIM, GREEN, RED, YELLOW, coloured
from exeat.reasons import Reason

_COLOURS = {ALLOWED: GREEN, BLOCKED: f"1;{RED}", CLOSED: DIM, EVENT: DIM, TROUBLE: YELLOW}
_VERDICT = max(len(ALLOWED), len(BLOCKED), len(CLOSED))
_MOVED = len("999k/999k")
_METHOD = 8
_STATUS = 4
_NARROWEST = 30
_NO_ROOM_FOR_BYTES = 76
_ROOM_FOR_GAPS = 100
_SHORT_REASON = len(Reason.ADDRESS_NOT_LISTED)
_WIDEST = 60
"""Where nothing is cut: a column is no wider than this, and what is longer pushes the rest to the right."""


class Table:
    """Lays out rows as they come. Columns only ever grow, so that rows of one view stay aligned.

    `columns`: the width of the terminal, None if it is none; then times have their date, and nothing is cut.
    """

    def __init__(self, columns: int | None, *, has_colours: bool, mark: str = "~") -> None:
        self._columns = columns
        self._has_colours = has_colours
        self._mark = mark
        self._method = 4
        self._where = 12
        self._why = 8
        self._day = time.localtime()[:3]

    def resize(self, columns: int | None) -> None:
        """The terminal may have another width now."""
        self._columns = columns

    def lay_out(self, rows: Sequence[Row]) -> list[str]:
        """Lines for rows, without newlines."""
        for row in rows:
            self._method = max(self._method, min(len(row.method), _METHOD))
            self._where = max(self._where, min(len(row.where), _WIDEST))
            if row.verdict not in (BLOCKED, EVENT, TROUBLE):  # Nothing stands behind theirs: it needs no column.
                self._why = max(self._why, min(len(row.why), _WIDEST))
        lines: list[str] = []
        for row in rows:
            lines += self._new_day(row)
            lines.append(self._line(row))
        return lines

    def _new_day(self, row: Row) -> Iterable[str]:
        if self._columns is None or row.when is None or row.when[:3] == self._day:
            return ()
        self._day = row.when[:3]
        return (self._painted(time.strftime("-- %Y-%m-%d --", row.when), DIM),)

    def _line(self, row: Row) -> str:
        width = None if self._columns is None else max(self._columns, _NARROWEST)
        when = self._time(row)
        if row.verdict in (EVENT, TROUBLE):
            line = f"{when}  -- {row.why} --"
            return self._painted(self._cut_line(line), _COLOURS[row.verdict])
        gap = "  " if width is None or width >= _ROOM_FOR_GAPS else " "
        method = (row.method if width is None else self._cut(row.method, _METHOD)).ljust(self._method)
        head = gap.join((when, row.verdict.ljust(_VERDICT), method))
        where_width, why_width = self._shares(None if width is None else width - len(head) - 2 * len(gap), len(gap))
        if width is not None and row.verdict == BLOCKED and len(row.where) > where_width:
            # What was refused matters more than a straight column.
            where_width = max(where_width, width - len(head) - 2 * len(gap) - min(len(row.why), _SHORT_REASON))
        where = row.where if width is None else self._cut_middle(row.where, where_width)
        cells = [where.ljust(where_width)]
        if row.verdict == BLOCKED:
            cells.append(row.why)
        else:
            cells.append((row.why if width is None else self._cut(row.why, why_width)).ljust(why_width))
            if width is None or width >= _NO_ROOM_FOR_BYTES:
                cells += [row.moved.rjust(_MOVED), row.status]
        line = self._cut_line(gap.join((head, *cells)).rstrip())
        if not self._has_colours:
            return line
        after_time = len(when) + len(gap)
        after_verdict = after_time + len(row.verdict)
        return (
            self._painted(line[: len(when)], DIM)
            + line[len(when) : after_time]
            + self._painted(line[after_time:after_verdict], _COLOURS[row.verdict])
            + line[after_verdict:]
        )

    def _shares(self, room: int | None, gap: int) -> tuple[int, int]:
        """How wide the place and the rule may be."""
        if room is None:
            return self._where, self._why
        assert self._columns is not None
        why = self._why
        if self._columns >= _NO_ROOM_FOR_BYTES:
            room -= _MOVED + _STATUS + 2 * gap
        else:
            why = max(why, _SHORT_REASON)  # No columns behind it, into which a reason could reach.
        where = max(min(self._where, max(room - why, room * 3 // 5)), 8)
        return where, max(min(why, room - where), 4)

    def _time(self, row: Row) -> str:
        if self._columns is None:
            return "----------T--------" if row.when is None else time.strftime("%Y-%m-%dT%H:%M:%S", row.when)
        return "--:--:--" if row.when is None else time.strftime("%H:%M:%S", row.when)

    def _cut_line(self, line: str) -> str:
        return line if self._columns is None else self._cut(line, self._columns)

    def _cut(self, text: str, width: int) -> str:
        return text if len(text) <= width else text[: width - 1] + self._mark

    def _cut_middle(self, text: str, width: int) -> str:
        """The end of a host says whose it is, so most of that stays."""
        if len(text) <= width:
            return text
        head = (width - 1) // 3
        return text[:head] + self._mark + text[len(text) - (width - 1 - head) :]

    def _painted(self, text: str, colour: str) -> str:
        return coloured(text, colour) if self._has_colours and text else text
