"""The controlling terminal of a run, which the command shares unless it gets one of its own (`command_terminal.py`)."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from exeat.run.asks.command_terminal import CommandTerminal


def is_at_hand() -> bool:
    """Is there a terminal, and is it ours to read from? Who runs in the background must not take what is typed."""
    terminal = Terminal()
    try:
        return terminal.exists and terminal.is_ours
    finally:
        terminal.close()


class Terminal:
    """The controlling terminal, if there is one. Given back at the end as it was found.

    The command shares it, unless the caller is to be asked something on it: then the command gets one of its own.
    """

    def __init__(self) -> None:
        self._foreground = 0
        self._apart: CommandTerminal | None = None
        self._is_raw_inside = False
        self._never_asks: socket.socket | None = None  # its other end is open for as long as this is
        try:
            self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._foreground = os.tcgetpgrp(self._descriptor)
        except OSError:
            self._descriptor = -1

    @property
    def descriptor(self) -> int:
        return self._descriptor

    @property
    def exists(self) -> bool:
        return self._descriptor >= 0

    @property
    def is_ours(self) -> bool:
        """Were we in the foreground at the start?"""
        return self._foreground == os.getpgrp()

    @property
    def is_shared(self) -> bool:
        """Does the command share it, and with it our process group?"""
        return self.exists and self._apart is None

    def ask_here(self, asking: socket.socket | None, *, apart: bool = False) -> None:
        """Put the questions that come from there to the caller. From here on the command has a terminal of its own.

        `apart`: it gets one even if there is nothing to ask, because it cannot share ours. To be called when the
        signals are blocked and before the jail is built. Raises ExeatError.
        """
        if not self.exists:
            if asking is not None:
                asking.close()  # there is no one to ask here
            return
        if asking is None:
            if not (apart and self.is_ours):
                return
            from exeat.jail.messages import open_channel

            self._never_asks, asking = open_channel()
        from exeat.run.asks.command_terminal import CommandTerminal  # for those who are asked

        self._apart = CommandTerminal(self._descriptor, asking)

    @property
    def own(self) -> tuple[int, int] | None:
        """The command's own terminal, if it has one: the descriptor, and the device number of the caller's."""
        return None if self._apart is None else (self._apart.slave, self._apart.device)

    @property
    def watched(self) -> int:
        """Readable when the process between the two terminals has ended. -1: there is none."""
        return -1 if self._apart is None else self._apart.descriptor

    def lose(self) -> None:
        """That process has ended before its time, and the command's terminal with it: it is told by the kernel."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None

    def goes_to_guest(self) -> None:
        """A guest's command shares it, and has every key: Ctrl-Z stops the guest's command, and no one here.

        Not if one of the streams is no terminal: then the guest has none, and the keys are for our group.
        """
        self._is_raw_inside = all(map(os.isatty, (0, 1, 2)))

    def begin(self) -> None:
        """The command is there, or goes on: keys are passed on to it from now on."""
        if self._apart is not None:
            self._apart.begin()

    def suspend(self) -> None:
        """Stop as a job of a shell does, so that the shell sees it. Comes back when we are told to go on."""
        if self._apart is not None:
            self._apart.suspend()
        others_had_no_key = self.exists and (self._apart is not None or self._is_raw_inside)
        if others_had_no_key and os.tcgetpgrp(self._descriptor) == os.getpgrp():
            _stop_group()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def end_questions(self) -> None:
        """The command has ended. What is written from now on is to be seen at once."""
        if self._apart is not None and not self._apart.end_questions():
            self.lose()

    def give_back(self) -> None:
        """A shell in the jail takes the terminal for itself and cannot return it to a group outside its namespace."""
        if self._descriptor < 0 or self._foreground != os.getpgrp():
            return
        try:
            if os.tcgetpgrp(self._descriptor) != self._foreground:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
                os.tcsetpgrp(self._descriptor, self._foreground)
        except OSError:
            pass  # the terminal has gone

    def close(self) -> None:
        """To be called when no process of the command's is left. Waits until everything is written."""
        self.lose()
        if self._never_asks is not None:
            self._never_asks.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _stop_group() -> None:
    """Ctrl-Z was typed at the command's terminal, or in a guest. Whoever waits for us in our group, such as a script,
    has not had it, and a shell notices a stop only if its own child stops.

    One signal for all: told to go on between two, we would stop after that.
    """
    before = signal.getsignal(signal.SIGTSTP)
    if sys.platform != "linux":
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # ignored by `SignalSource`, which blocks it on Linux
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
    os.killpg(os.getpgrp(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGTSTP, before)
