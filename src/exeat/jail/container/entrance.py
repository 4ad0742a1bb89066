"""A process that enters containers' networks for programs that cannot, because they have threads or an event loop.

A process with several threads cannot enter a user namespace, and must not go on in Python after a fork. So a pool
starts one that has a single thread, once, and tells it which container to enter. It forks for each, answers with the
sockets that were made there, and ends when the program does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Final

from exeat.errors import JailError
from exeat.jail import messages
from exeat.jail.container.adopt import hear_network, make_network
from exeat.jail.jail import Sockets

_CHANNEL: Final = 3
_ANSWER_S: Final = 60.0
# The program may have found exeat by a path of its own: -I does not pass that on.
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from exeat.jail.container.entrance import attend; attend()"
)


class Entrance:
    """The program's side. `enter` may be called by several threads at once."""

    def __init__(self) -> None:
        """Raises JailError."""
        if not sys.executable:
            raise JailError("containers cannot be entered: this program does not say which Python it is")
        self._lock = Lock()
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        self._channel, theirs = messages.open_channel()
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-B", "-c", _START, root],
                {"PATH": os.defpath},  # nothing of ours: there may be secrets in it
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL)],
                setpgroup=0,  # Ctrl-C is for the program
            )
        except OSError as error:
            self._channel.close()
            raise JailError("the process that enters containers cannot be started", detail=str(error)) from None
        finally:
            theirs.close()

    def enter(self, pid: int, token: str, to_host: Sequence[messages.HostPorts]) -> tuple[socket.socket, Sockets]:
        """As `adopt.enter`. Raises JailError."""
        ours, theirs = messages.open_channel()
        ours.settimeout(_ANSWER_S)
        try:
            with theirs:
                self._ask(messages.Enter(pid, token, tuple(to_host)), theirs)
            return hear_network(ours)
        except OSError as error:
            raise JailError("the process that enters containers does not answer", detail=str(error)) from None
        finally:
            ours.close()

    def _ask(self, what: messages.Enter, answer: socket.socket) -> None:
        """One that has died is replaced: a pool lives longer than a machine is short of memory."""
        with self._lock:
            try:
                messages.send(self._channel, what, [answer.fileno()])
            except ConnectionError:
                if self._is_closed:
                    raise
                self._end()
                self._start()
                messages.send(self._channel, what, [answer.fileno()])

    def close(self) -> None:
        """It ends by itself, and is waited for."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _end(self) -> None:
        messages.hang_up(self._channel)
        if self._pid:
            try:
                os.waitpid(self._pid, 0)
            except ChildProcessError:
                pass  # the program has waited for all its children
            self._pid = 0


def attend() -> None:
    """The process itself: until the program closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for those that it forks
    os.set_inheritable(_CHANNEL, False)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))  # what the program passes on to all that it starts
    with socket.socket(fileno=_CHANNEL) as channel:
        while True:
            message, received = messages.receive(channel, 1)
            if not isinstance(message, messages.Enter):
                return
            with socket.socket(fileno=received[0]) as answer:
                if os.fork() == 0:
                    channel.close()
                    make_network(message.pid, message.token, message.to_host, answer)
