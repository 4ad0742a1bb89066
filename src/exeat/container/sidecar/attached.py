"""The streams of a container as the engine carries them, between here and there."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

from exeat.container.harness.multiplexed import STDOUT, Demultiplexer
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError

_CHUNK: Final = 1 << 16
_LOOK_S: Final = 0.2
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Attached:
    """`read` is for when `connection` is readable. To be made before the container starts, or that is missed."""

    def __init__(self, engine: Engine, container: str, *, stdin: bool = False, is_terminal: bool = False) -> None:
        query = {"stream": True, "stdin": stdin, "stdout": True, "stderr": True}
        upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
        answer = engine.request("POST", f"/containers/{container}/attach", query=query, headers=upgrade)
        self.connection = answer.connection
        self.connection.settimeout(None)
        self._streams = None if is_terminal else Demultiplexer()  # a terminal has one stream, as it is

    def read(self) -> list[tuple[int, bytes]] | None:
        """What has come, each piece with 1 (output) or 2 (errors); None: that was all."""
        try:
            data = self.connection.recv(_CHUNK)
        except ConnectionError:
            return None
        if not data:
            return None
        return [(STDOUT, data)] if self._streams is None else self._streams.pieces(data)

    def close(self) -> None:
        self.connection.close()


class Signals(Protocol):
    """As `exeat.jail.signals.SignalSource`."""

    descriptor: int

    def read(self) -> list[tuple[int, bool]]: ...


class Relay:
    """Our standard streams and the command's, signals in, and the gateway's log, until the command has ended."""

    def __init__(self, engine: Engine, container: str, command: Attached, log: Attached, signals: Signals) -> None:
        self._engine, self._container = engine, container
        self._command, self._log, self._signals = command, log, signals
        self._to_send = b""
        self._has_input = self._is_open = True
        self._endings = 0
        self._selector = selectors.PollSelector()  # epoll knows no regular files

    def run(self, on_log: Callable[[list[tuple[int, bytes]] | None], None]) -> dict[str, Any]:
        """The state of the container that has ended, as the engine describes it. Raises EngineError."""
        self._selector.register(self._command.connection, selectors.EVENT_READ)
        self._selector.register(self._log.connection, selectors.EVENT_READ)
        self._selector.register(self._signals.descriptor, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            # A command can close its streams and go on.
            events = self._selector.select(None if self._is_open else _LOOK_S)
            for key, mask in events:
                if key.fileobj is self._log.connection:
                    pieces = self._log.read()
                    on_log(pieces)
                    if pieces is None:
                        self._selector.unregister(self._log.connection)
                elif key.fd == self._signals.descriptor:
                    for number, _ in self._signals.read():
                        self._pass_signal(number)
                elif key.fileobj is self._command.connection:
                    self._attend(mask)
                elif self._has_input:
                    self._take_input()
            if not self._is_open:
                state: dict[str, Any] = self._engine.call("GET", f"/containers/{self._container}/json")["State"]
                if not state["Running"]:
                    return state

    def _attend(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send()
        if not (mask & selectors.EVENT_READ and self._is_open):
            return
        pieces = self._command.read()
        if pieces is None:
            self._is_open = False
            self._selector.unregister(self._command.connection)
            self._end_input()
            return
        try:
            for which, data in pieces:
                _write(which, data)
        except BrokenPipeError:  # as for any command whose reader has left, but it has no such pipe itself
            self._kill(signal.SIGKILL)

    def _take_input(self) -> None:
        try:
            self._to_send = os.read(0, _CHUNK)
        except OSError:
            self._to_send = b""
        self._selector.unregister(0)  # until this is sent
        if not self._to_send:
            self._has_input = False
            try:
                self._command.connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has ended
            return
        self._selector.modify(self._command.connection, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _send(self) -> None:
        try:
            sent = self._command.connection.send(self._to_send, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._to_send)
        self._to_send = self._to_send[sent:]
        if not self._to_send:
            self._selector.modify(self._command.connection, selectors.EVENT_READ)
            self._selector.register(0, selectors.EVENT_READ)

    def _end_input(self) -> None:
        if self._has_input:
            self._has_input = False
            if 0 in self._selector.get_map():
                self._selector.unregister(0)

    def _pass_signal(self, number: int) -> None:
        if number in _ENDING:
            self._endings += 1
            self._kill(number if self._endings == 1 else signal.SIGKILL)  # who asks twice does not want to wait
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            self._kill(number)

    def _kill(self, number: int) -> None:
        try:
            name = signal.Signals(number).name
            self._engine.call("POST", f"/containers/{self._container}/kill", query={"signal": name})
        except EngineError:
            pass  # it has ended, and that is seen elsewhere


class RawTerminal:
    """Ours, for a command that has one there: keys go as they are, and sizes are told."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine, self._container = engine, container

    def __enter__(self) -> Self:
        import termios
        import tty

        self._modes = termios.tcgetattr(0)
        tty.setraw(0)
        self._resize()
        signal.signal(signal.SIGWINCH, self._resize)
        return self

    def _resize(self, *_: object) -> None:
        columns, lines = os.get_terminal_size(0)
        try:
            self._engine.call("POST", f"/containers/{self._container}/resize", query={"h": lines, "w": columns})
        except EngineError:
            pass  # a matter of looks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        import termios

        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(0, termios.TCSAFLUSH, self._modes)


def _write(which: int, data: bytes) -> None:
    while data:
        data = data[os.write(which, data) :]
