"""What a person sees of some bytes on a terminal: as much of one as it takes to play tricks with it.

Follows xterm where others agree with it: scroll regions, margins, colours that a program may change, output that goes
to a printer or waits for the end of a picture, letters of double width, and pictures that lie over the text.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb"\x1b\[([?>=]?)([0-9;]*)([ -/]*)([@-~])|\x1b([]P_])([^\x07\x1b\x18]*)(?:\x07|\x1b\\|(?=\x18))|\x1b[ -/]?.|(.)",
    re.DOTALL,
)
_HEIGHT = re.compile(rb",r=([0-9]+)")  # of a picture that is put; none for those that are removed


class TinyTerminal:
    """`rows` of `columns`. A cell is seen if its letter has another colour than what is behind it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._columns, self._rows = columns, rows
        self._cells = self._blank()
        self._row = self._column = 0
        self._saved = (0, 0)
        self._top, self._bottom = 0, rows - 1
        self._left, self._right = 0, columns - 1
        self._own_colours = {10: "ink", 11: "paper"}
        self._is_coloured = self._prints = self._waits = self._has_margins = False
        self._wraps = True
        self._wide: set[int] = set()  # rows
        self._picture: range = range(0)

    def _blank(self) -> list[list[tuple[str, bool]]]:
        return [[(" ", False)] * self._columns for _ in range(self._rows)]

    @property
    def seen(self) -> str:
        """The screen as text, one line a row."""
        if self._waits:
            return ""
        is_readable = self._own_colours[10] != self._own_colours[11]
        lines = []
        for number, row in enumerate(self._cells):
            is_covered = number in self._picture
            letters = (letter if (own or is_readable) and not is_covered else " " for letter, own in row)
            lines.append("".join(letters).rstrip())
        return "\n".join(lines)

    def write(self, data: bytes) -> None:
        for found in _TOKEN.finditer(data):
            mark, numbers, middle, final, string, text, letter = found.groups()
            if self._prints:
                self._prints = (numbers, final) != (b"4", b"i")
            elif final is not None:
                values = [int(each or b"0") for each in numbers.split(b";")]
                self._control(mark.decode(), values, (middle + final).decode())
            elif string == b"]":
                self._colour(text)
            elif string == b"_" and text.startswith(b"G"):
                height = _HEIGHT.search(text)
                self._picture = range(self._row, self._row + int(height[1])) if height else range(0)
            elif letter is not None:
                self._put(letter)
            elif found[0] in (b"\x1b#5", b"\x1b#6"):
                self._wide = (self._wide - {self._row}) | ({self._row} if found[0] == b"\x1b#6" else set())
            elif found[0] == b"\x1b7":
                self._saved = self._row, self._column
            elif found[0] == b"\x1b8":
                self._row, self._column = self._saved

    def _control(self, mark: str, values: list[int], final: str) -> None:
        first = values[0]
        match mark, final:
            case "", "H":
                self._row, self._column = max(first, 1) - 1, max((*values, 1)[1], 1) - 1
            case "", "G":
                self._column = max(first, 1) - 1
            case "", "A":
                self._row = max(self._row - max(first, 1), self._top if self._row >= self._top else 0)
            case "", "K":
                self._cells[self._row] = [(" ", False)] * self._columns
            case "", "J":
                self._cells = self._blank()
            case "", "m":
                self._is_coloured = 38 in values
            case "", "r":
                self._top, self._bottom = (
                    (max(first, 1) - 1, (*values, self._rows)[1] - 1) if first else (0, self._rows - 1)
                )
                self._row = self._column = 0
            case "", "s" if self._has_margins and len(values) == 2:
                self._left, self._right = first - 1, values[1] - 1
                self._row = self._column = 0
            case "", "i":
                self._prints = first == 5
            case "?", "h" | "l":
                is_on = final == "h"
                if 69 in values:
                    self._has_margins = is_on
                    if not is_on:
                        self._left, self._right = 0, self._columns - 1
                if 7 in values:
                    self._wraps = is_on
                if 2026 in values:
                    self._waits = is_on

    def _colour(self, text: bytes) -> None:
        number, _, value = text.partition(b";")
        if number in (b"10", b"11"):
            self._own_colours[int(number)] = value.decode()
        elif number in (b"110", b"111"):
            self._own_colours[int(number) - 100] = "ink" if number == b"110" else "paper"

    def _put(self, letter: bytes) -> None:
        if letter == b"\r":
            self._column = self._left if self._column >= self._left else 0
        elif letter == b"\n":
            self._feed()
        elif letter >= b" ":
            last = min(self._right, self._columns // 2 - 1) if self._row in self._wide else self._right
            if self._column > last and self._wraps:
                self._column = self._left
                self._feed()
            self._column = min(self._column, last)
            self._cells[self._row][self._column] = letter.decode("latin-1"), self._is_coloured
            self._column += 1

    def _feed(self) -> None:
        if self._row == self._bottom:
            del self._cells[self._top]
            self._wide = {row - 1 for row in self._wide if row > 0}  # good enough: the region is all of it then
            self._cells.insert(self._bottom, [(" ", False)] * self._columns)
        elif self._row < self._rows - 1:
            self._row += 1
