"""The jail as its caller sees it: build it, let the command start, hear how it ends."""

from __future__ import annotations

import os
import signal
import socket

from exeat.errors import JailError
from exeat.jail import libc
from exeat.jail.explain import explain_failure
from exeat.jail.messages import (
    EXEC_FAILED,
    EXITED,
    FAILED,
    GO,
    INIT,
    MOVED,
    PASS_SIGNAL,
    READY,
    SOCKETS,
    STOPPED,
    TRIED,
    receive,
    unpack_failure,
)
from exeat.jail.net.network import DNS_PORT, Sockets
from exeat.jail.process.builder import Spec, build

_MAX_SOCKETS = 8
_MAX_MESSAGE = 8_192


class Event:
    """Something that happened inside: `stopped` by a signal, or `ended` with an exit status as a shell counts it."""

    __slots__ = ("kind", "note", "value")

    def __init__(self, kind: str, value: int, note: str = "") -> None:
        self.kind = kind
        self.value = value
        self.note = note


class NamespaceJail:
    """Owns one jail's processes. All of them end when init ends, and init ends when we do."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._init = 0
        self._builder = 0
        self._exec_failure: tuple[int, str] | None = None
        self.namespaces: list[int] = []  # ways back in, if there is something to be held
        self.layers = -1  # a descriptor of what the command's view is made of, if it has one
        self.tried: list[str] = []  # programs that were refused a user namespace
        self.control: socket.socket

    @property
    def may_nest(self) -> bool:
        return self._spec.nesting.allowed

    @property
    def init(self) -> int:
        """Process 1 of the jail, by its number out here; 0 if there is none (any more)."""
        return self._init

    def start_building(self) -> None:
        """Fork the builder and come back at once: there is other work to do meanwhile. Call with one thread only."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The builder leaves when it is done; its child, init, then becomes ours.
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        self._builder = os.fork()
        if self._builder == 0:
            ours.close()
            build(self._spec, theirs)
        theirs.close()
        self.control = ours

    def finish_building(self) -> Sockets | None:
        """Wait until the jail stands. Gives its sockets if it has a network of its own. Raises JailError."""
        sockets: Sockets | None = None
        ready = False
        try:
            while not (ready and self._init):
                data, received = receive(self.control, _MAX_MESSAGE, _MAX_SOCKETS)
                match data[:1]:
                    case kind if kind == SOCKETS:
                        sockets = _sorted_out(received)
                    case kind if kind == INIT:
                        self._init, count = map(int, data[1:].split())
                        for descriptor in received:
                            os.set_inheritable(descriptor, False)
                        self.namespaces = received[:count]
                        for self.layers in received[count:]:
                            pass
                    case kind if kind == READY:
                        ready = True
                    case kind if kind == FAILED:
                        raise explain_failure(*unpack_failure(data[1:]))
                    case _:
                        raise JailError("the jail could not be built", detail="its builder ended without a message")
            os.waitpid(self._builder, 0)
            self._builder = 0
            return sockets
        except BaseException:
            if sockets is not None:
                sockets.close()
            self.kill()
            raise

    def release(self) -> None:
        """Let the command start."""
        try:
            self.control.send(GO)
        except ConnectionError:
            raise self._why_it_ended() from None

    def _why_it_ended(self) -> JailError:
        """Init has gone before its time. It may have said why."""
        data, _ = receive(self.control, _MAX_MESSAGE)
        if data[:1] == FAILED:
            return explain_failure(*unpack_failure(data[1:]))
        return JailError("the jail ended before the command could start", detail="its init ended without a message")

    def pass_signal(self, number: int) -> None:
        """Send the command a signal that only we have got."""
        try:
            self.control.send(PASS_SIGNAL + str(number).encode())
        except OSError:
            pass  # it has ended; the news is on its way

    def receive(self) -> Event | None:
        """The next news from inside; None for news that changes nothing. Raises JailError."""
        data, _ = receive(self.control, _MAX_MESSAGE)
        match data[:1]:
            case kind if kind == STOPPED:
                return Event("stopped", int(data[1:]))
            case kind if kind == MOVED:
                # The caller's own stream goes on where the command stopped, as if it had been the same.
                stream, position = map(int, data[1:].split())
                os.lseek(stream, position, os.SEEK_SET)
                return None
            case kind if kind == EXITED:
                return self._ended(int(data[1:]))
            case kind if kind == EXEC_FAILED:
                _, number, reason = unpack_failure(data[1:])
                self._exec_failure = number, reason
                return None
            case kind if kind == TRIED:
                self.tried.append(data[1:].decode("ascii", "replace"))
                return None
            case kind if kind == FAILED:
                self.kill()
                raise explain_failure(*unpack_failure(data[1:]))
            case _:
                # Init was killed from outside: so was everything in the jail.
                self.kill()
                return Event("ended", 128 + signal.SIGKILL, "the jail was killed")

    def _ended(self, status: int) -> Event:
        os.waitpid(self._init, 0)
        self._init = 0
        self.control.close()
        if self._exec_failure is not None:
            number, reason = self._exec_failure
            missing = number == 2
            return Event("ended", 127 if missing else 126, f"{self._spec.argv[0]}: {reason}")
        if os.WIFSIGNALED(status):
            return Event("ended", 128 + os.WTERMSIG(status))
        return Event("ended", os.WEXITSTATUS(status))

    def kill(self) -> None:
        """End everything inside, now. May be called at any time, more than once."""
        self.control.close()
        for pid in (self._builder, self._init):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
        self._builder = self._init = 0


def _sorted_out(received: list[int]) -> Sockets:
    """Descriptors as sockets again, told apart by what they are: it survives any change of their order."""
    sockets = Sockets([], [], [], [])
    for number in received:
        each = socket.socket(fileno=number)
        if each.family == socket.AF_NETLINK:
            sockets.dropped.append(each)
        elif each.type == socket.SOCK_DGRAM:
            sockets.dns_udp.append(each)
        elif each.getsockname()[1] == DNS_PORT:
            sockets.dns_tcp.append(each)
        else:
            sockets.tcp.append(each)
    return sockets
