"""A run with nothing but its terminals: a command on one of its own, questions from whoever listens at a path.

Started as a job on a terminal (`tests/support/clients/terminal.py`): `asked.py PATH COMMAND...`. Times are short here.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from exeat.jail.messages import Answered, Asked, Settled, receive, send
from exeat.jail.process.command import lead
from exeat.jail.signals import FOR_COMMAND, STOPPING, open_signalfd, remember_signals, restore_signals
from exeat.run.asks import dialog
from exeat.run.asks.terminal import Terminal

_LIMIT_S = 60
QUIET_S = 0.25  # more than the time in which keys are thrown away here


class FakeGateway:
    """The gateway's end of the questions, in a test."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/asking"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(_LIMIT_S)
        self._channel: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        if self._channel is not None:
            self._channel.close()

    @property
    def channel(self) -> socket.socket:
        if self._channel is None:
            self._channel = self._listener.accept()[0]
            self._channel.settimeout(_LIMIT_S)
        return self._channel

    def ask(self, number: int, host: str = "api.x.test", *, can_store: bool = False, **others: Any) -> None:
        send(self.channel, Asked(number, host, 443, host, False, 30.0, can_store).replace(**others))

    def say_gone(self, number: int) -> None:
        send(self.channel, Settled(number))

    def hear(self, *, settles: bool = True) -> tuple[int, bool, bool]:
        """The next answer: its number, allow, always."""
        said, _ = receive(self.channel)
        assert isinstance(said, Answered)
        if settles:
            self.say_gone(said.number)
        return said.number, said.allow, said.always


@contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    with tempfile.TemporaryDirectory(prefix="exeat-ask-") as folder, FakeGateway(folder) as gateway:
        yield gateway


def asked_argv(gateway: FakeGateway, command: list[str]) -> list[str]:
    return [sys.executable, "-m", "tests.support.runs.asked", gateway.path, *command]


def _hurry() -> None:
    for name in ("_QUIET_S", "_ALONE_S", "_DEAF_S", "_LATE_S"):
        setattr(dialog, name, 0.1)


def _run(path: str, argv: list[str]) -> int:
    _hurry()
    remember_signals()
    open_signalfd((*FOR_COMMAND, *STOPPING))
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(path)
    terminal = Terminal()
    terminal.ask_here(channel)
    pid = os.fork()
    if pid == 0:

        def become() -> Any:
            restore_signals()
            os.execvp(argv[0], argv)

        assert terminal.own is not None
        lead(become, terminal.own[0])
    terminal.begin()
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        terminal.suspend()
        os.kill(pid, 18)
        terminal.begin()
    terminal.end_questions()
    sys.stderr.write("the summary\n")
    terminal.close()
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
