"""The process between the caller's terminal and the command's own: passes bytes on, and puts questions to the caller.

It alone reads the caller's terminal, and it alone speaks for it to the gateway. While a question is open, what the
command writes waits in its own terminal, so it cannot change what the caller sees.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import termios
from collections.abc import Iterable

from exeat.jail.messages import Word, receive, send
from exeat.run.asks.caller_terminal import CallerTerminal, GoneError, Size
from exeat.run.asks.dialog import Dialog
from exeat.run.asks.screen import Screen

_PIECE = 65_536
_MAX_WAITING = 65_536  # bytes that have been read and not been written yet
_FULL_SCREEN = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")
_LONGEST_SWITCH = 8


class Relay:
    """`terminal` is the caller's, opened for this process alone; `master` is the other side of the command's."""

    def __init__(
        self,
        terminal: int,
        master: int,
        control: socket.socket,
        asking: socket.socket,
        *,
        is_dumb: bool,
        others_write: bool = False,
    ) -> None:
        self._terminal = CallerTerminal(terminal, others_write=others_write)
        self._master = master
        self._control = control
        self._is_dumb = is_dumb
        self._others_write = others_write
        self._to_command = bytearray()
        self._dialog = Dialog(asking, self._terminal.waiting, self._to_command)
        self._tail = b""  # of what the command has written
        self._is_full_screen = False
        self._missing_rows = 0
        self._has_begun = False  # is the command there, or nearly so?
        self._is_suspended = False
        self._is_ending = False
        self._wake, self._woken = os.pipe()
        for descriptor in (master, self._wake, self._woken):
            os.set_blocking(descriptor, False)
        control.setblocking(False)

    def live(self) -> None:
        """Until the run says that it is over, or the terminal has gone."""
        for number in (signal.SIGWINCH, signal.SIGCONT):
            signal.signal(number, _notice)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            self._pass_size()
            send(self._control, Word.READY)
            while not self._is_ending:
                self._step()
            self._finish()
        except GoneError:
            pass  # the command's terminal goes with it
        finally:
            self._terminal.give_back()

    def _step(self) -> None:
        if self._dialog.has_next and not self._is_suspended:
            self._show_next()
        poll = select.poll()
        for descriptor, mask in self._wanted():
            poll.register(descriptor, mask)
        ready = dict(poll.poll(self._dialog.pause_ms()))
        if self._wake in ready:
            self._wake_up()
        if self._control.fileno() in ready:
            self._obey()
        if self._terminal.descriptor in ready:
            self._use_terminal(ready[self._terminal.descriptor])
        if self._master in ready:
            self._use_master(ready[self._master])
        if self._dialog.descriptor in ready:
            self._dialog.hear()
        self._dialog.look_at_clock()
        self._have_drawn_again()

    def _wanted(self) -> Iterable[tuple[int, int]]:
        """What is read and written in this turn. Who does not keep up makes the other side wait."""
        yield self._wake, select.POLLIN
        yield self._control.fileno(), select.POLLIN
        dialog = self._dialog
        if dialog.descriptor >= 0:
            yield dialog.descriptor, select.POLLIN
        reads = self._terminal.is_taken and (dialog.is_asking or len(self._to_command) < _MAX_WAITING)
        mask = (select.POLLIN if reads else 0) | (select.POLLOUT if self._terminal.waiting else 0)
        if mask and not self._is_suspended:
            yield self._terminal.descriptor, mask
        reads = not dialog.is_asking and not self._is_suspended and len(self._terminal.waiting) < _MAX_WAITING
        mask = (select.POLLIN if reads else 0) | (select.POLLOUT if self._to_command else 0)
        if mask:
            yield self._master, mask

    # The caller's terminal

    def _take_terminal(self) -> None:
        if self._has_begun and not self._is_suspended:
            typed = self._terminal.take()
            if typed:
                self._dialog.typed(typed)
            self._pass_size()

    def _wake_up(self) -> None:
        """The window has another size, or we were stopped and go on."""
        try:
            os.read(self._wake, _PIECE)
        except BlockingIOError:
            return
        self._take_terminal()

    def _pass_size(self, missing_rows: int = 0) -> None:
        self._missing_rows = missing_rows
        try:
            Size(self._terminal.descriptor).put(self._master, missing_rows)
        except OSError:
            pass  # the terminal has gone, which others will notice

    def _have_drawn_again(self) -> None:
        """Programs draw everything again when the size changes, and many only then.

        So it changes when a question covers what one has drawn, and changes back after that.
        """
        missing_rows = 1 if self._dialog.covers_drawing else 0
        if missing_rows != self._missing_rows:
            self._pass_size(missing_rows)

    def _use_terminal(self, events: int) -> None:
        if events & select.POLLOUT:
            self._terminal.write()
        if events & ~select.POLLOUT:
            data = self._terminal.read()
            if data:
                self._dialog.typed(data)

    # The command's terminal

    def _use_master(self, events: int) -> None:
        if events & select.POLLOUT and self._to_command:
            try:
                del self._to_command[: os.write(self._master, self._to_command)]
            except BlockingIOError:
                pass
        if events & ~select.POLLOUT and not self._dialog.is_asking:
            self._read_master()

    def _read_master(self) -> bool:
        """False if there is nothing just now, or nothing any more."""
        try:
            data = os.read(self._master, _PIECE)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        if not data:  # nothing has the other side open any more, not even the run
            self._is_ending = True
            return False
        self._terminal.let_draw(not termios.tcgetattr(self._master)[1] & termios.OPOST)
        # The command's terminal has ended its lines as terminals want it; if the caller's does that too, once will do.
        self._terminal.waiting += data.replace(b"\r\n", b"\n") if self._terminal.ends_lines else data
        seen = self._tail + data
        if switches := _FULL_SCREEN.findall(seen):
            self._is_full_screen = switches[-1] == b"h"
        self._tail = seen[-_LONGEST_SWITCH:]
        return True

    def _read_all(self) -> None:
        """What the command has written until now."""
        while len(self._terminal.waiting) < _MAX_WAITING and self._read_master():
            pass

    def _finish(self) -> None:
        """All that the command and the run have written goes out. Someone may still have the other side open."""
        while self._terminal.write_out() and self._read_master():
            pass

    # The run

    def _obey(self) -> None:
        try:
            message, _ = receive(self._control)
        except BlockingIOError:
            return
        except OSError:
            message = None
        match message:
            case Word.NO_QUESTIONS:
                self._dialog.stop()
            case Word.ENDING | None:  # without a word: the run was killed, and the command with it
                self._dialog.stop()
                self._is_ending = True
            case Word.SUSPEND:
                self._suspend()
            case Word.BEGIN:
                self._has_begun, self._is_suspended = True, False
                self._take_terminal()

    def _suspend(self) -> None:
        if self._dialog.is_asking:
            self._dialog.take_back()
        self._read_all()
        self._terminal.write_out()
        self._terminal.give_back()
        self._is_suspended = True
        send(self._control, Word.SUSPENDED)

    # Questions

    def _show_next(self) -> None:
        """What was written and typed before a question comes before it."""
        if not self._terminal.is_taken:
            self._dialog.announce()
            return
        self._read_all()
        self._dialog.typed(self._terminal.read())
        if not self._is_ending:
            self._dialog.show_next(self._screen())
            self._tail = b"\n"

    def _screen(self) -> Screen:
        size = Size(self._terminal.descriptor)
        return Screen(
            columns=size.columns or 80,
            rows=size.rows or 24,
            is_dumb=self._is_dumb,
            is_raw=not termios.tcgetattr(self._master)[3] & termios.ICANON,
            is_full=self._is_full_screen,
            is_fresh=not self._tail or self._tail.endswith(b"\n"),
            others_write=self._others_write,
        )


def _notice(number: int, frame: object) -> None:
    """The wake-up descriptor tells of it."""
