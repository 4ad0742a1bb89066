"""A terminal of the command's own, and the process that keeps it apart from the caller's: for `exeat run --ask`.

The command must not be able to answer for the caller. On the caller's own terminal it could: it reads what is typed,
and can have the terminal itself say things. So it gets another, and all that it sees of the caller's is what the
process in between (`relay.py`) passes on.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import time
from contextlib import suppress
from typing import NoReturn

from exeat.errors import ExeatError
from exeat.jail.messages import Word, open_channel, receive, send
from exeat.jail.signals import FOR_COMMAND, STOPPING
from exeat.run.asks.relay import Relay
from exeat.run.sealing import seal_imports

_READY_S = 10.0
_SUSPEND_S = 10.0
_END_S = 60.0  # it gives up by itself long before, unless there is much to write on a slow line
_LOOK_S = 0.002
_MASTERS = os.makedev(5, 2)  # of pseudo terminals, on Linux


class CommandTerminal:
    """The run's side. From here to `close`, the run's own streams go through the command's terminal as well."""

    def __init__(self, terminal: int, asking: socket.socket) -> None:
        """Fork. Call with one thread, and before the jail is built; `asking` is closed here. Raises ExeatError."""
        self._terminal = terminal
        self.device = _device_number()
        try:
            self._modes = termios.tcgetattr(terminal)
            master, self.slave = os.openpty()
            termios.tcsetattr(self.slave, termios.TCSANOW, self._modes)
        except (OSError, termios.error) as error:
            raise ExeatError("--ask needs a terminal of its own for the command", detail=str(error)) from None
        self._control, theirs = open_channel()
        others_write = not (_is_own_terminal(1) and _is_own_terminal(2))
        self._pid = os.fork()
        if self._pid == 0:
            _live(master, theirs, asking, others_write=others_write)
        for each in (theirs, asking):
            each.close()
        os.close(master)
        self._swapped: list[tuple[int, int]] = []
        try:
            if not self._wait_for(Word.READY, _READY_S):
                raise ExeatError("--ask: the process that shows questions could not start")
            self._swap_streams()
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """Becomes readable when the process has ended, which it does by itself only with the caller's terminal."""
        return self._control.fileno()

    def _swap_streams(self) -> None:
        """The command's terminal in the place of the caller's, under every number that a program inherits."""
        for number in _inherited():
            if not _is_own_terminal(number):
                continue
            self._swapped.append((number, os.dup(number)))
            os.dup2(self.slave, number)

    def _give_streams_back(self) -> None:
        while self._swapped:
            number, original = self._swapped.pop()
            os.dup2(original, number)
            os.close(original)

    def end_questions(self) -> bool:
        """The command has ended. Its terminal gets the modes back that it began with: it has left what it liked.

        False if the process has ended, so that nothing can be written there any more.
        """
        with suppress(termios.error, OSError):
            termios.tcsetattr(self.slave, termios.TCSANOW, self._modes)
        return self._tell(Word.NO_QUESTIONS)

    def suspend(self) -> None:
        """The run is about to stop: the caller's terminal must be as it was found."""
        if self._tell(Word.SUSPEND):
            self._wait_for(Word.SUSPENDED, _SUSPEND_S)

    def begin(self) -> None:
        """Begin, or go on after `suspend`."""
        self._tell(Word.BEGIN)

    def close(self) -> None:
        """Wait until everything is written. To be called when all processes of the jail are gone. May be repeated."""
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        self._give_streams_back()
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1
        if self._pid:
            self._tell(Word.ENDING)
            if self._reap() != 0:
                self._restore()
        self._control.close()

    def _reap(self) -> int:
        """Wait for the process. Returns its status, which is not 0 if it could not do its work to the end."""
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._pid = 0
                return status
            select.select([], [], [], _LOOK_S)
        os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return status

    def _restore(self) -> None:
        """In the place of the process, which was killed."""
        with suppress(OSError, termios.error):
            if os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._modes)

    def _tell(self, word: Word) -> bool:
        try:
            send(self._control, word)
        except OSError:
            return False  # it has ended, which is noticed elsewhere
        return True

    def _wait_for(self, word: Word, limit_s: float) -> bool:
        """Until it says so. False if it has ended, or takes too long."""
        self._control.settimeout(limit_s)
        try:
            return receive(self._control)[0] is word
        except (OSError, ExeatError):
            return False


def _is_own_terminal(number: int) -> bool:
    try:
        os.tcgetpgrp(number)  # fails for everything but our own terminal
    except OSError:
        return False
    return True


def _device_number() -> int:
    """Of the caller's terminal; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[4])
    except FileNotFoundError:
        return 0


def _inherited() -> list[int]:
    """Open descriptors that the command would inherit. Sides of pseudo terminals that type into them are closed."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return [0, 1, 2]
    found = []
    for number in numbers:
        try:
            if number > 2 and not os.get_inheritable(number):
                continue
            if number > 2 and os.fstat(number).st_rdev == _MASTERS:
                os.close(number)
                continue
        except OSError:
            continue  # the one that listed the folder
        found.append(number)
    return found


def _live(master: int, control: socket.socket, asking: socket.socket, *, others_write: bool) -> NoReturn:
    """The process in between, from the fork on. It has nothing open but what it needs, and loads nothing more."""
    try:
        for number in (*FOR_COMMAND, *STOPPING):
            signal.signal(number, signal.SIG_IGN)  # they are for the command; this ends when the run says so
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        _close_others(keep={terminal, master, control.fileno(), asking.fileno()})
        is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        relay = Relay(terminal, master, control, asking, is_dumb=is_dumb, others_write=others_write)
        seal_imports()
        relay.live()
        os._exit(0)
    except BaseException:
        os._exit(1)


def _close_others(keep: set[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    low = 3
    for number in sorted(keep):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
