"""Init's work while the command runs: it reaps, passes signals on, and tells the runner what happens."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from typing import NoReturn

from exeat.jail.limits.nesting import Attempts
from exeat.jail.messages import EXITED, MOVED, PASS_SIGNAL, STOPPED, receive
from exeat.jail.process import streams
from exeat.jail.process.freezing import Freezer
from exeat.jail.signals import FOR_COMMAND, SI_USER, read_signalfd

# How long the two halves of a signal to the group, to the runner and to init, can be apart.
_GROUP_MS = 50


class Watch:
    """Init's work while the command runs."""

    def __init__(
        self,
        command: int,
        signals: int,
        control: socket.socket,
        positions: dict[int, int],
        attempts: Attempts,
        *,
        leads_session: bool,
        shares_group: bool,
    ) -> None:
        """`positions`: of standard streams that were opened again. `shares_group`: with whoever started the run."""
        self._command = command
        self._attempts = attempts
        self._signals = signals
        self._control = control
        self._positions = positions
        self._leads_session = leads_session
        self._shares_group = shares_group
        self._freezer = Freezer()
        self._seen: dict[int, float] = {}  # signals that came to the whole group, and when

    def go_on(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        self._attempts.watch(poll)
        while True:
            ready = dict(poll.poll())
            self._attempts.take(ready)
            if self._signals in ready:
                self._take_signals()
            if self._control.fileno() in ready:
                data, _ = receive(self._control, 16)
                if not data:
                    os._exit(1)  # the runner is gone
                if data[:1] == PASS_SIGNAL:
                    self._pass(int(data[1:]))

    def _take_signals(self) -> None:
        for number, code, _ in read_signalfd(self._signals):
            if number == signal.SIGCHLD:
                self._reap()
            elif code <= SI_USER:
                self._seen[number] = time.monotonic()

    def _pass(self, number: int) -> None:
        """Send the command a signal that the runner got, unless it went to the group and so to the command as well.

        We are in the same group and would have got it too, at the same time or a moment later.
        """
        if number == signal.SIGCONT:
            self._freezer.thaw()
        if self._shares_group and number in FOR_COMMAND:
            poll = select.poll()
            poll.register(self._signals, select.POLLIN)
            if number not in self._seen and poll.poll(_GROUP_MS):
                self._take_signals()
            if time.monotonic() - self._seen.pop(number, -math.inf) < 1.0:
                return
        if self._leads_session and number in (signal.SIGCONT, signal.SIGTSTP):
            os.killpg(self._command, number)  # as a shell does for a job
        else:
            os.kill(self._command, number)

    def _reap(self) -> None:
        """Collect everything that has ended. When that is the command, it is over."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                os._exit(1)
            if pid == 0:
                return
            if pid != self._command:
                continue
            if os.WIFSTOPPED(status):
                self._freezer.freeze()
                self._control.send(STOPPED + str(os.WSTOPSIG(status)).encode())
            else:
                for stream, position in streams.moved(self._positions).items():
                    self._control.send(MOVED + f"{stream} {position}".encode())
                self._control.send(EXITED + str(status).encode())
                os._exit(0)
