"""A runner that prepares everything for a command, and then waits until its program names it.

A failure before that is not reported: the program notices that this process has ended, and starts a new run, which
reports the reason.
"""

from __future__ import annotations

import io
import os
import socket
import sys
from argparse import Namespace
from typing import NoReturn

from exeat.cli import embedded
from exeat.jail import messages
from exeat.jail.handed import Environ, have_environ, read_environ
from exeat.run.late import NotTakenError

# Stands for every command: what is seen of the machine for this one, most see.
_ANY = "true"
_STREAMS = 4  # the report, and three


class Program:
    """The program, which has the other end of the channel."""

    def __init__(self, channel: socket.socket, own: list[str], *, has_proxy: bool) -> None:
        self._channel = channel
        self._own = own
        self._has_proxy = has_proxy

    def wait(self) -> tuple[messages.Take, list[int]]:
        messages.send(self._channel, messages.Word.STANDING)
        message, received = messages.receive(self._channel, 2)
        if not isinstance(message, messages.Take):
            raise NotTakenError("no command arrived")
        sys.stderr = io.StringIO()  # until there is a place to say it
        return message, received

    def adopt(self, take: messages.Take, own: int, given: int) -> Environ | None:
        have_environ(read_environ(own, take.environ))
        environ = read_environ(given, take.given) if take.given >= 0 else None
        embedded.settle_environ(self._own, environ)
        if self._has_proxy:
            embedded.take_outer_proxy(environ)
        return environ

    def accept(self) -> list[int]:
        messages.send(self._channel, messages.Word.READY)
        message, received = messages.receive(self._channel, _STREAMS)
        if message is not messages.Word.STREAMS or len(received) != _STREAMS:
            raise NotTakenError("the command has no streams")
        said = sys.stderr.getvalue() if isinstance(sys.stderr, io.StringIO) else ""
        sys.stderr = embedded.open_report(received[0])
        sys.stderr.write(said)
        self._channel.close()
        return received[1:]

    def leave(self) -> None:
        self._channel.close()


def live(words: list[str], channel: socket.socket) -> NoReturn:
    """What a run would be told, but for its command. Ends the process."""
    given, own = embedded.take_own_words(words)
    embedded.settle_environ(own, None)
    program = Program(channel, own, has_proxy="--outer-proxy" in given)

    def act(summaries: list[str]) -> int:
        named = Namespace(environ=None, on_summary=summaries.append, late=program)
        options = embedded.run_parser().parse([*words, "--", _ANY], named)
        status: int = options.run(options, words)
        return status

    os.set_inheritable(channel.fileno(), False)
    embedded.report(act)
