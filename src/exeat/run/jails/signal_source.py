"""Signals for a command that shares our process group: which of those that come here has it not got by itself?"""

from __future__ import annotations

import os
import signal
import sys

from exeat.jail.signals import FOR_COMMAND, STOPPING

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class SignalSource:
    """Reads signals as data. Linux says who sent each; elsewhere those of a terminal are taken to come from it."""

    def __init__(self, *, has_terminal: bool) -> None:
        self._has_terminal = has_terminal
        self._wake = -1
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        if sys.platform == "linux":
            from exeat.jail.signals import open_signalfd  # noqa: PLC0415 - Linux only

            self.descriptor = open_signalfd((*FOR_COMMAND, signal.SIGCHLD))
        else:
            self.descriptor, self._wake = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self._wake, False)
            signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
            for number in (*FOR_COMMAND, signal.SIGCHLD):
                signal.signal(number, _ignore)

    @property
    def descriptors(self) -> list[int]:
        return [each for each in (self.descriptor, self._wake) if each >= 0]

    def read(self) -> list[int]:
        """The signals to pass on. A command's end wakes us too, and is not among them."""
        if sys.platform == "linux":
            from exeat.jail.signals import SI_USER, read_signalfd  # noqa: PLC0415

            return [
                number
                for number, code, _ in read_signalfd(self.descriptor)
                if number != signal.SIGCHLD and (code <= SI_USER or not self._has_terminal)
            ]
        try:
            numbers = os.read(self.descriptor, 4_096)
        except BlockingIOError:
            return []
        return [
            number
            for number in numbers
            if number != signal.SIGCHLD and not (self._has_terminal and number in _FROM_TERMINAL)
        ]

    def close(self) -> None:
        if self._wake >= 0:
            signal.set_wakeup_fd(-1)
        for descriptor in self.descriptors:
            os.close(descriptor)


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor tells of it."""
