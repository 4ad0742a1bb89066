"""Signals read as data, with who sent them, instead of handlers that interrupt."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterable

from exeat.jail.libc import call

_SIGSET_BYTES = 128
_INFO_BYTES = 128
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
# What a caller, or a terminal, may mean for the command.
FOR_COMMAND = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# The command stops if it wants to, and then so does the process that waits for it.
STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
SI_USER = 0  # by kill(2); positive codes come from the kernel, a terminal for example

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)

_inherited: dict[int, signal.Handlers] = {}


def remember_signals() -> None:
    """Note what the caller wants ignored (nohup): the command inherits that. Call before changing any."""
    for number in signal.valid_signals():
        try:
            if signal.getsignal(number) is signal.SIG_IGN:
                _inherited[number] = signal.SIG_IGN
        except ValueError:
            continue
    # Python itself ignores these, whatever the caller did.
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        _inherited.pop(number, None)


def waiting_end() -> int:
    """A blocked signal that has come and would end the command, were it there; 0 if there is none."""
    pending = signal.sigpending()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if number in pending and number not in _inherited:
            return number
    return 0


def restore_signals() -> None:
    """As the caller left them, nothing blocked: for a child that is about to become another program."""
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        try:
            signal.signal(number, _inherited.get(number, signal.SIG_DFL))
        except (OSError, ValueError):
            continue  # real-time signals that the C library keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def open_signalfd(numbers: Iterable[int]) -> int:
    """Block these signals and have them readable instead."""
    numbers = list(numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    bits = 0
    for number in numbers:
        bits |= 1 << (number - 1)
    mask = ctypes.create_string_buffer(bits.to_bytes(_SIGSET_BYTES, "little"), _SIGSET_BYTES)
    return call("signalfd", -1, mask, _CLOEXEC_NONBLOCK)


def read_signalfd(descriptor: int) -> list[tuple[int, int, int]]:
    """Signals that have come: number, code, and the sender's pid where there is one."""
    found: list[tuple[int, int, int]] = []
    while True:
        try:
            data = os.read(descriptor, _INFO_BYTES * 16)
        except BlockingIOError:
            return found
        for at in range(0, len(data), _INFO_BYTES):
            number, _, code, pid = struct.unpack_from("=IiiI", data, at)
            found.append((number, code, pid))


class SignalSource:
    """The signals that come to the run while its command runs, as data. Linux says who sent each.

    To stop at once when the terminal says so would mean to stop again at the news of the command's stop.
    """

    def __init__(self) -> None:
        self._wake = -1
        if sys.platform == "linux":
            self.descriptor = open_signalfd((*FOR_COMMAND, *STOPPING, signal.SIGCHLD))
            return
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        self.descriptor, self._wake = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*FOR_COMMAND, signal.SIGCHLD):
            signal.signal(number, _ignore)

    def read(self) -> list[tuple[int, bool]]:
        """Each with whether a process sent it. Where no one says so, those of a terminal are taken to come from it."""
        if sys.platform == "linux":
            return [(number, code <= SI_USER) for number, code, _ in read_signalfd(self.descriptor)]
        try:
            return [(number, number not in _FROM_TERMINAL) for number in os.read(self.descriptor, 4_096)]
        except BlockingIOError:
            return []

    def close(self) -> None:
        if self._wake >= 0:
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = self._wake = -1


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor tells of it."""
