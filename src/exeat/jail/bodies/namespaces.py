"""Shared by the jails made of namespaces (netns, nft): a builder, an init, and the runner's part in both."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from exeat.errors import JailError
from exeat.jail import libc, messages
from exeat.jail.attending import attend, how_it_ended
from exeat.jail.explain import explain_failure
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE, View
from exeat.jail.jail import Company, Ended, Jail, Sockets, Spec
from exeat.jail.net.received import sort_out
from exeat.jail.process.builder import build
from exeat.jail.process.place import Place

_MAX_DESCRIPTORS = 8


class NamespaceJail:
    """Owns one jail's processes. All of them end when init ends, and init ends when we do."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._builder = 0
        self._init = 0
        self._program = ""
        self._is_empty = self._is_late = False
        self._not_started: messages.ExecFailed | None = None
        self._guest_ended: messages.GuestEnded | None = None
        self._tried: list[str] = []  # programs that were refused a user namespace
        self.namespaces: tuple[int, ...] = ()
        self.layers = -1

    @property
    def init(self) -> int:
        """Process 1 of the jail, by its number out here; 0 if there is none (any more)."""
        return self._init

    @property
    def news(self) -> int:
        return self._channel.fileno()

    @property
    def _channel(self) -> socket.socket:
        assert self._control is not None
        return self._control

    def raise_place(self, place: Place) -> Sockets:
        """Fork the builder and wait until all stands. The sockets are those of a network of its own. Raises JailError.

        To be called with one thread only.
        """
        self._program, self._is_late = place.spec.argv[0], place.spec.is_late
        ours, theirs = messages.open_channel()
        # The builder leaves when it is done; its child, init, then becomes ours.
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        self._builder = os.fork()
        if self._builder == 0:
            ours.close()
            build(place, theirs)
        theirs.close()
        self._control = ours
        sockets = Sockets([], [], [], [])
        try:
            self._await_init(sockets)
        except BaseException:
            sockets.close()
            self.close()
            raise
        return sockets

    def _await_init(self, sockets: Sockets) -> None:
        is_ready = False
        while not (is_ready and self._init):
            message, received = messages.receive(self._channel, _MAX_DESCRIPTORS)
            match message:
                case messages.Word.SOCKETS:
                    sort_out(received, sockets)
                case messages.InitStarted(pid, count):
                    self._init = pid
                    self.namespaces = tuple(received[:count])
                    self.layers = received[count] if len(received) > count else -1
                case messages.Word.READY:
                    is_ready = True
                case _:
                    raise _explain(message, "the jail could not be built", "its builder ended without a message")
        os.waitpid(self._builder, 0)
        self._builder = 0

    def release(self) -> None:
        try:
            messages.send(self._channel, messages.Word.GO)
        except ConnectionError:
            message, _ = messages.receive(self._channel)  # init has gone before its time, and may have said why
            raise _explain(
                message, "the jail ended before the command could start", "its init ended without a message"
            ) from None

    def become(self, argv: Sequence[str], environ: Mapping[str, str], umask: int) -> None:
        """What GO is to start, where that was not known when the place was built."""
        self._program = argv[0]
        messages.send(self._channel, messages.Command(tuple(argv), tuple(environ.items()), umask))

    def pass_streams(self, streams: Sequence[int]) -> None:
        """What it is to be started with, once that is certain. They stay the caller's."""
        messages.send(self._channel, messages.Word.STREAMS, streams)

    def attend(self, company: Company) -> Ended:
        self._channel.setblocking(False)
        return attend(self, company).replace(nesters=tuple(self._tried))

    def pass_signal(self, number: int) -> None:
        try:
            messages.send(self._channel, messages.PassSignal(number))
        except OSError:
            pass  # it has ended; the news is on its way

    def receive(self) -> messages.Stopped | Ended | None:
        while True:
            try:
                message, _ = messages.receive(self._channel)
            except BlockingIOError:
                return None
            match message:
                case messages.Stopped():
                    return message
                case messages.StreamMoved(stream, position):
                    # The caller's own stream goes on where the command stopped, as if it had been the same.
                    os.lseek(stream, position, os.SEEK_SET)
                case messages.Exited(status):
                    os.waitpid(self._init, 0)
                    self._init = 0
                    return self._ended(status)
                case messages.Emptied(status):  # init itself is on its way out; `end` waits for it
                    self._is_empty = True
                    return self._ended(status)
                case messages.ExecFailed():
                    self._not_started = message
                case messages.GuestNote(text):
                    sys.stderr.write(f"exeat: {text}\n")
                case messages.GuestEnded():
                    self._guest_ended = message
                case messages.GuestFailed(public, detail, fix):
                    self.end()
                    raise JailError(public, detail=detail, fix=fix)
                case messages.NestingRefused(program):
                    self._tried.append(program)
                case None:
                    # Init was killed from outside: so was everything in the jail.
                    self.end()
                    return Ended(128 + signal.SIGKILL, "the jail was killed")
                case _:
                    self.end()
                    raise _explain(message, "the jail has failed", "its init sent an unexpected message")

    def _ended(self, status: int) -> Ended:
        ended = how_it_ended(self._program, status, self._not_started)
        if self._guest_ended is None:
            return ended
        return ended.replace(note="\n".join(filter(None, self._guest_ended)))

    def close(self) -> None:
        self.end()

    def end(self) -> None:
        if self._control is not None:
            self._control.close()
        for pid in (self._builder, self._init):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                    # Nothing but init is left: a program need not wait for its end.
                    os.waitpid(pid, os.WNOHANG if self._is_empty and self._is_late else 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
        self._builder = self._init = 0


def mounted_trust(spec: Spec) -> dict[str, str]:
    """Variables for certificates that are mounted in the jail. Java's store is put in the place of its own."""
    if spec.trust is None:
        return {}
    from exeat.trust.places import trust_variables  # only where there is something to trust

    return trust_variables(BUNDLE, own=OWN_CERTIFICATE)


def try_out(jail: Jail) -> None:
    """Build one and start nothing in it. Raises JailError."""
    from exeat.jail.environment import Variables
    from exeat.jail.files.layering import PRIVATE
    from exeat.jail.files.mounttable import silent_mounts
    from exeat.jail.files.view import Layers

    view = View(Layers((), limit=64 << 20, is_trial=True), silent=silent_mounts(PRIVATE))
    try:
        jail.build(Spec([""], "/", Variables({}), view=view)).sockets.close()
    finally:
        jail.close()


def _explain(message: messages.Message | None, public: str, detail: str) -> JailError:
    return explain_failure(*message) if isinstance(message, messages.Failed) else JailError(public, detail=detail)
