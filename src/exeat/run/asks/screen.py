"""How a question looks on a terminal, and which keys answer it. Pure: bytes and values only.

A key answers only if it comes alone. What comes in a run is not an answer: text that is pasted, words that were meant
for the command, and what a terminal says by itself when a program asks for its colours, its cursor or its mouse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from exeat.jail.messages import Asked

_MAX_TEXT = 1_024
_MAX_PROGRAM = 100
_SET_IN = " " * 9
# Whatever sequence the command has left open ends here, and so does what it may have done to what is written next:
# output that goes to a printer or a status line, or waits for the end of a picture; pictures; colours of its own for
# ink and paper; margins and scroll regions (these move the cursor, which is put back).
_START = (
    b"\x18\x1b\\\x1b[4i\x1b[0$}\x1b[?2026l\x1b_Ga=d\x1b\\\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\"
    b"\x1b7\x1b[?69l\x1b[r\x1b8"
)
_PLAIN_LOOK = b"\x0f\x1b(B\x1b[m"  # letters as letters, and no attributes
_SAVE, _RESTORE = b"\x1b7", b"\x1b8"
_ERASE_LINE = b"\x1b#5\x1b[2K"  # with letters of single width from then on

# Keys that interrupt: a no, and the command gets them as well. Some programs have terminals spell Ctrl-C out.
_INTERRUPTS = (b"\x03", b"\x1c", b"\x1b[99;5u", b"\x1b[27;5;99~")
_STOPS = (b"\x1a", b"\x1b[122;5u", b"\x1b[27;5;122~")
_ESCAPES = (b"\x1b", b"\x1b[27u")
# What a terminal sends without a key being pressed: answers to the command's questions, mouse, focus.
_REPORT = re.compile(
    rb"\x1b(?:[]P_][^\x07\x1b]*(?:\x07|\x1b\\)|\[[?<>=][0-9;:$ ]*[@-~]|\[M...|\[[0-9;]+[Rnt]|\[[IO])", re.DOTALL
)


class Key(NamedTuple):
    """What a key means: an answer, and what of it the command is to get."""

    allow: bool
    always: bool = False
    passed_on: bytes = b""


def place_of(question: Asked) -> str:
    host = visible(question.host)
    return f"[{host}]:{question.port}" if ":" in host else f"{host}:{question.port}"


def key_of(data: bytes, question: Asked) -> Key | None:
    """The meaning of what was typed at once; None if it is no answer."""
    if data in _INTERRUPTS:
        return Key(allow=False, passed_on=data)
    if data in _ESCAPES:
        return Key(allow=False)
    match data.lower():
        case b"y" | b"o":
            return Key(allow=True)
        case b"n":
            return Key(allow=False)
        case b"a" if question.can_store:
            return Key(allow=True, always=True)
        case b"e" if question.can_store:
            return Key(allow=False, always=True)
    return None


def is_control(data: bytes) -> bool:
    """Is it Ctrl-C, Ctrl-\\ or Ctrl-Z? The command gets these whatever is on the screen."""
    return data in _INTERRUPTS or data in _STOPS


def is_stop(data: bytes) -> bool:
    """Is it Ctrl-Z? That is no answer."""
    return data in _STOPS


def split_reports(data: bytes) -> tuple[bytes, bytes]:
    """What comes from the terminal itself, and what comes from keys."""
    if b"\x1b" not in data:
        return b"", data
    return b"".join(_REPORT.findall(data)), _REPORT.sub(b"", data)


def visible(text: str) -> str:
    """Text that can do nothing to a terminal and looks like nothing else: printable ASCII, all other characters named.

    Of a text that is too long the end is kept: that is the part of a host name that says whose it is.
    """
    shown = "".join(char if " " <= char <= "~" and char != "\\" else f"\\u{{{ord(char):x}}}" for char in text)
    return shown if len(shown) <= _MAX_TEXT else f"...{shown[-_MAX_TEXT:]}"


def question_lines(question: Asked, left_s: float, note: str = "") -> list[str]:
    """The question. The last line says which keys there are."""
    lines = [f"exeat: allow {place_of(question)}?  ({max(round(left_s), 0)} s)"]
    if question.program:
        lines.append(f'       asked by "{visible(question.program)[:_MAX_PROGRAM]}"')
    if question.inside:
        lines.append("exeat: CAREFUL: this is an internal address, of this machine or its network")
    if note:
        lines.append(f"exeat: {note}")
    if question.can_store and question.rule != question.host:
        lines.append(f"       always and never are about: {visible(question.rule)}")
    lines.append(f"       {keys_line(question)}")
    return lines


def keys_line(question: Asked) -> str:
    if question.can_store:
        return "[y]es, this run  [a]lways  [n]o  n[e]ver"
    return "[y]es, this run  [n]o"


def answered_line(question: Asked, key: Key) -> str:
    how = "always" if key.always else "for this run"
    if key.allow:
        return f"exeat: {place_of(question)} is allowed {how}"
    return f"exeat: {place_of(question)} is {'never allowed' if key.always else 'denied for this run'}"


class Screen:
    """How text of ours gets between the command's, and off the screen again, where the command draws on all of it.

    - a plain program: on lines of their own; one stays, which says what came of it. If others write there too, all
      stay: there is no telling where theirs are.
    - a program that edits a line or draws at the end of the screen (its terminal is in raw mode): below the cursor;
      taken away afterwards, and the cursor is back where it was.
    - a program that has the whole screen: on the last lines; it has to draw them again afterwards.
    - a terminal that cannot move its cursor: as plain text.
    """

    def __init__(
        self,
        *,
        columns: int,
        rows: int,
        is_dumb: bool,
        is_raw: bool,
        is_full: bool,
        is_fresh: bool,
        others_write: bool = False,
    ) -> None:
        self._columns = max(columns, 20)
        self._rows = max(rows, 2)
        self._is_dumb = is_dumb
        self._is_full = is_full and not is_dumb
        self._is_below = is_raw and not is_full and not is_dumb
        self._is_fresh = is_fresh  # is the cursor at the start of a line?
        self._others_write = others_write
        self._height = 0

    @property
    def leaves_holes(self) -> bool:
        """Is there something of the command's that it has to draw again?"""
        return self._is_full

    def open(self, lines: list[str]) -> bytes:
        """Show these lines."""
        rows = self._cut(lines)
        self._height = len(rows)
        texts = [row.encode("ascii", "replace") for row in rows]
        if self._is_dumb:
            return (b"" if self._is_fresh else b"\r\n") + b"\r\n".join(texts)
        texts[0] = b"\x1b[1m" + texts[0] + b"\x1b[m"
        start = _START + b"\a"
        if self._is_full:
            top = max(self._rows - self._height + 1, 1)
            moved = b"".join(
                b"\x1b[%d;1H%s%s" % (top + at, _ERASE_LINE, text) for at, text in enumerate(texts[-self._rows :])
            )
            return start + _SAVE + b"\x1b[?6l" + _PLAIN_LOOK + moved
        shown = (b"\r\n").join(_ERASE_LINE + text for text in texts)
        if self._is_below:
            down = b"\x1bD" if self._others_write else b"\n"  # in the same column, which there a line feed leaves
            room = down * self._height + b"\x1b[%dA" % self._height
            return start + room + _SAVE + _PLAIN_LOOK + b"\r\n" + shown
        # The cursor may be in any column of a line that has just begun.
        return start + _PLAIN_LOOK + (b"\r" if self._is_fresh else b"\r\n") + shown

    def again(self, line: str) -> bytes:
        """Put something else in the last line."""
        text = line[: self._columns - 1].encode("ascii", "replace")
        return (b"\r\n" if self._is_dumb else b"\r" + _ERASE_LINE) + text

    def close(self, line: str) -> bytes:
        """Take the question away, or leave what came of it."""
        if self._is_full or self._is_below:
            return self._erase() + _RESTORE
        text = b"\r\n".join(row.encode("ascii", "replace") for row in self._cut([line]))
        if self._is_dumb:
            return b"\r\n" + text + b"\r\n"
        return (b"\r" + _ERASE_LINE if self._others_write else self._erase()) + text + b"\r\n"

    def _erase(self) -> bytes:
        """From the last line of the question up to its first, where the cursor stays."""
        return b"\r" + _ERASE_LINE + (b"\x1b[A" + _ERASE_LINE) * (self._height - 1)

    def _cut(self, lines: list[str]) -> list[str]:
        """Into rows that fit: how many there are must be known.

        The rest of a line is set in, so that no name can be chosen to look like a line of ours where it is cut.
        """
        width = self._columns - 1
        rows = []
        for line in lines:
            rows.append(line[:width])
            step = width - len(_SET_IN)
            rows += [_SET_IN + line[at : at + step] for at in range(width, len(line), step)]
        return rows
