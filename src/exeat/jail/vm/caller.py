"""The caller's terminal while a guest uses it: every key goes to the guest, and so does the window's size."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from contextlib import suppress
from typing import Any, Final

_LOCAL: Final = 3  # which of a terminal's modes
_SIZE: Final = struct.Struct("HHHH")


def to_write_to(stream: int) -> int:
    """A descriptor for what a guest writes. A terminal is opened once more, so that a write to it never waits.

    One that has room for a single byte counts as ready, and who shows it may have stopped reading.
    """
    if os.isatty(stream):
        with suppress(OSError):  # it may belong to another user: then it is as it is
            return os.open(f"/proc/self/fd/{stream}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return stream


class CallersTerminal:
    """All three streams, if they are a terminal. If one is not, it is kept apart, and none of them is one inside."""

    def __init__(self) -> None:
        self.exists = all(map(os.isatty, (0, 1, 2)))
        self._found: list[Any] | None = None

    def take(self) -> None:
        """Have keys as they are typed, Ctrl-C among them."""
        if self.exists and self._found is None:
            found = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            self._found = found

    def note(self) -> None:
        """How it is now, for who only gives it back: `take` is what another process does, which may be killed."""
        with suppress(OSError, termios.error):  # it need not be the one that controls us
            if self.exists and os.tcgetpgrp(0) == os.getpgrp():
                self._found = termios.tcgetattr(0)

    def give_back_if_taken(self) -> None:
        """Whoever took it has not."""
        with suppress(OSError, termios.error):
            if self._found and self._found[_LOCAL] & ~termios.tcgetattr(0)[_LOCAL] & termios.ICANON:
                self.give_back()

    def give_back(self) -> None:
        """As it was found."""
        if self._found is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._found)
            self._found = None

    def size(self) -> tuple[int, int] | None:
        """Rows and columns; None: there is no terminal."""
        if not self.exists:
            return None
        try:
            rows, columns, _, _ = _SIZE.unpack(fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(_SIZE.size)))
        except OSError:
            return 24, 80
        return rows, columns
