"""The caller's terminal, in the hands of the one process that reads it (`relay.py`)."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from typing import Any

_PIECE = 65_536
_STALLED_S = 5.0  # a terminal that takes nothing for so long is not waited for any more
_SIZE = struct.Struct("4H")


class GoneError(Exception):
    """The terminal is no longer there."""


class Size:
    """Rows, columns, and both in pixels, as the kernel has them."""

    __slots__ = ("columns", "pixels", "rows")

    def __init__(self, descriptor: int) -> None:
        self.rows, self.columns, *self.pixels = _SIZE.unpack(
            fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(_SIZE.size))
        )

    def put(self, descriptor: int, missing_rows: int = 0) -> None:
        """Another terminal gets this size. The kernel tells the programs on it, if it is new."""
        rows = max(self.rows - missing_rows, 0)
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, _SIZE.pack(rows, self.columns, *self.pixels))


class CallerTerminal:
    """Raw while it is ours, and as it was found otherwise. Nothing here waits, except `write_out`.

    Where others write to it too, as in `exeat run --ask -- CMD | cat`, what is written goes on being treated as it was
    found: without that, their lines would begin below the end of the line before.
    """

    def __init__(self, descriptor: int, *, others_write: bool = False) -> None:
        """`descriptor` is of a file that nothing else has open: it becomes one that does not wait."""
        os.set_blocking(descriptor, False)
        self._others_write = others_write
        self._is_drawn_on = False
        self.descriptor = descriptor
        self.waiting = bytearray()  # to be shown
        self._modes: list[Any] | None = None  # as they were before ours
        self._raw: list[Any] = []  # ours

    @property
    def is_taken(self) -> bool:
        """Are the keys ours?"""
        return self._modes is not None

    def _is_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            raise GoneError from None

    def take(self) -> bytes:
        """Every key as it is, if the terminal is ours just now. In the background it is not.

        Returns the lines that were typed before. The rest of what was typed can still be read.
        """
        if not self._is_foreground():
            self._modes = None
            return b""
        typed = b""
        if self._modes is None:
            self._modes = termios.tcgetattr(self.descriptor)
            if self._modes[3] & termios.ICANON:
                typed = self._read_lines(self._modes[6][termios.VEOF])
        self._set_raw()
        return typed

    @property
    def ends_lines(self) -> bool:
        """Does it make the end of a line of every line feed?"""
        return self._raw != [] and bool(self._raw[1] & termios.OPOST and self._raw[1] & termios.ONLCR)

    def _set_raw(self) -> None:
        assert self._modes is not None
        keeps_output = self._others_write and not self._is_drawn_on
        termios.tcsetattr(self.descriptor, termios.TCSANOW, _raw(self._modes, keeps_output=keeps_output))
        self._raw = termios.tcgetattr(self.descriptor)

    def let_draw(self, is_drawn_on: bool) -> None:
        """Does the command draw, and so mean every byte as it is? Then nothing may be added to what it writes."""
        if is_drawn_on != self._is_drawn_on:
            self._is_drawn_on = is_drawn_on
            if self._others_write and self._modes is not None:
                self._set_raw()

    def _read_lines(self, end: bytes) -> bytes:
        """While the kernel still knows lines: it would forget where one was ended by Ctrl-D."""
        lines = b""
        try:
            while len(lines) < _PIECE:
                line = os.read(self.descriptor, _PIECE)
                lines += line if line.endswith(b"\n") else line + end
                if not line and os.tcgetpgrp(self.descriptor) != os.getpgrp():
                    break
        except OSError:
            pass  # no more of them
        return lines

    def give_back(self) -> None:
        """As it was found, unless a shell that has it back already has changed it: then that is what counts."""
        if self._modes is None:
            return
        try:
            if termios.tcgetattr(self.descriptor) == self._raw:
                termios.tcsetattr(self.descriptor, termios.TCSANOW, self._modes)
        except termios.error:
            pass  # it has gone
        self._modes = None

    def read(self) -> bytes:
        """What was typed; empty if nothing was. Raises GoneError."""
        try:
            data = os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:
            if self._is_foreground():
                raise GoneError from None
            self._modes = None  # in the background since
            return b""
        if not data:
            raise GoneError
        return data

    def write(self) -> None:
        """Show as much as it takes. Raises GoneError."""
        try:
            del self.waiting[: os.write(self.descriptor, self.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            raise GoneError from None

    def write_out(self) -> bool:
        """Show everything, as long as it takes any of it. False if it does not. Raises GoneError."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self.waiting:
            if not poll.poll(_STALLED_S * 1_000):
                return False
            self.write()
        return True


def _raw(modes: list[Any], *, keeps_output: bool) -> list[Any]:
    """The same modes with every key as it is and, unless the output is to be kept, every byte that is written too."""
    inputs, outputs, control, local, *speeds, characters = modes
    inputs &= ~(termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON)
    if not keeps_output:
        outputs &= ~termios.OPOST
    control = control & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    local &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [inputs, outputs, control, local, *speeds, characters]
