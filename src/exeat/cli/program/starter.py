"""The starter: a process that has exeat's code loaded, and forks for each command that a program wants to run.

The program starts it as any other process, not by a fork: it has one thread, and nothing of the program's memory. It
learns nothing of what it forks for. Command, environment and open files go from the program to the new process, over a
socket that the two of them have. So there is no state here that one run could leave to the next, and no secret.

Each fork is a runner, as if it had just been started, and makes its own gateway process and jail. Linux.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, NoReturn

from exeat.cli import embedded
from exeat.cli.program import prepared
from exeat.files.keys.search import load_whole_key_list
from exeat.jail import libc, messages
from exeat.jail.handed import have_environ, read_environ
from exeat.jail.limits.privileges import hide_memory
from exeat.run.sealing import GATEWAY, INTERCEPTION, ROTATION
from exeat.secrets.stream.codings import load_codings

# What a run would load, the runner and its gateway process together. What is missing here is loaded by each run by
# itself, which takes time and nothing else; tests/integration/test_run_embed_starter.py looks for it.
_ALWAYS: Final = (
    "asyncio", "uvloop", "exeat.run.main", "exeat.run.lifecycle", "exeat.run.viewed_files", "exeat.run.files.ground",
    "exeat.run.files.answers", "exeat.run.late", "exeat.jail.bodies.netns",
    "exeat.run.gateway_process.rules", "exeat.run.gateway_process.serving", "publicsuffixlist", *GATEWAY, *ROTATION,
)  # fmt: skip
_FOR: Final = {
    "secrets": (
        "exeat.run.gateway_process.intercepting", "exeat.policy.positions", "exeat.trust.places",
        "cryptography.hazmat.backends.openssl.backend", *INTERCEPTION,
    ),
    "name": (
        "exeat.run.gateway_process.oversight", "exeat.run.gateway_process.stored", "exeat.cli.proxy.sandboxes",
        "exeat.files.layers.folding", "exeat.files.layers.saving", "exeat.sandbox.file_settings",
    ),
    "ask": ("exeat.run.gateway_process.oversight", "exeat.run.gateway_process.who_asks"),
}  # fmt: skip
_MAX_DESCRIPTORS: Final = 12


def serve(descriptor: int, uses: Sequence[str]) -> NoReturn:
    """Load everything, then fork on request over that socket, until it is closed."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the thread had that we were started by
    os.chdir("/")
    load(uses)
    starter = Starter(control)
    gc.collect()
    gc.disable()
    gc.freeze()  # no page of it is written to, and so none copied, by a search for garbage
    messages.send(control, messages.Word.READY)
    starter.go_on()


def load(uses: Sequence[str]) -> None:
    for name in (*_ALWAYS, *(each for use in uses for each in _FOR[use])):
        import_module(name)
    if "secrets" in uses:
        load_codings()
    embedded.run_parser()
    load_whole_key_list()


class Starter:
    """It has a socket to the program and, of each runner, a descriptor and a socket on which to tell its end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._is_wanted = True
        self._dumpable = libc.prctl(libc.PR_GET_DUMPABLE)
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)  # of runners that leave before their children
        hide_memory()  # no one else takes part in what all later runs are made of
        self._runners: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: pid, and who waits for its end
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def go_on(self) -> NoReturn:
        """Until the program wants no more runs, and those that there are have ended. If it dies, the kernel ends us."""
        while self._is_wanted or self._runners:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._runners:
                    self._tell_end(descriptor)
                else:
                    self._hear()
        os._exit(0)

    def _hear(self) -> None:
        message, received = messages.receive(self._control, 2)
        if message is not messages.Word.FORK:
            self._is_wanted = False
            self._poll.unregister(self._control)
            self._control.close()
            return
        if len(received) < 2:
            for each in received:
                os.close(each)
            return  # no more files can be had; the program sees that no one answers
        answers, channel = (socket.socket(fileno=each) for each in received)
        try:
            self._fork(answers, channel)
        except OSError as error:
            _say(answers, messages.NotStarted("no process could be started", error.strerror or str(error)))
            answers.close()
        finally:
            channel.close()

    def _fork(self, answers: socket.socket, channel: socket.socket) -> None:
        """For whoever has the other end of the channel, and may have said there already what it is to do."""
        starter = os.getpid()
        pid = os.fork()
        if pid == 0:
            _live(channel, starter, self._dumpable)
        descriptor = os.pidfd_open(pid)
        self._runners[descriptor] = pid, answers
        self._poll.register(descriptor, select.POLLIN)
        _say(answers, messages.Forked(pid), [descriptor])

    def _tell_end(self, descriptor: int) -> None:
        pid, answers = self._runners.pop(descriptor)
        self._poll.unregister(descriptor)
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
        _say(answers, messages.Exited(status))
        answers.close()
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        """What runners have left: a gateway process and an init, which were killed. Perhaps no one else reaps them."""
        runners = {pid for pid, _ in self._runners.values()}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in runners:
                    return  # its own turn comes
                os.waitpid(ended.si_pid, 0)


def _say(answers: socket.socket, message: messages.Message, descriptors: Sequence[int] = ()) -> None:
    try:
        messages.send(answers, message, descriptors)
    except OSError:
        pass  # it is not waited for any more


def _live(channel: socket.socket, starter: int, dumpable: int) -> NoReturn:
    """The new process, from the fork on. It runs what it is told to, if it is, and never returns."""
    status = 2
    try:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(status)
        number = channel.fileno()
        # Of others: the way to the starter, and of runs that go on at this moment.
        os.closerange(3, number)
        os.closerange(number + 1, os.sysconf("SC_OPEN_MAX"))
        libc.prctl(libc.PR_SET_DUMPABLE, dumpable)  # there is nothing in it yet, and id maps need it
        os.setsid()
        messages.send(channel, messages.Word.READY)
        message, received = messages.receive(channel, _MAX_DESCRIPTORS)
        if isinstance(message, messages.Prepare):
            _stand_in(received[0], received[1], message.environ, message.umask)
            prepared.live(list(message.words), channel)
        channel.close()
        if isinstance(message, messages.Begin):
            _become(message, received)
            embedded.start(list(message.words))
    except BaseException as error:
        os.write(2, f"exeat: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _become(begin: messages.Begin, received: list[int]) -> None:
    """Get what a process has from its start: open files by their numbers, working directory, environment."""
    folder, environ, *files = received
    _stand_in(folder, environ, begin.environ, begin.umask)
    # First out of the way, since a number that is wanted may be another's now.
    above = max(begin.numbers) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in files]
    for each in files:
        os.close(each)
    for descriptor, number in zip(moved, begin.numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _stand_in(folder: int, environ: int, length: int, umask: int) -> None:
    """Where, and with what variables."""
    os.fchdir(folder)
    os.umask(umask)
    have_environ(read_environ(environ, length))
    os.close(folder)
    os.close(environ)
