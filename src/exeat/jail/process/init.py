"""Init: process 1 of the jail. It starts the command, reaps what is orphaned, and passes signals on.

When it ends, the kernel ends everything inside. It is a child of the builder, and never returns to the caller's code.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

from exeat.jail import libc, messages
from exeat.jail.files import kernelfs
from exeat.jail.jail import OwnTerminal
from exeat.jail.limits import nesting, privileges
from exeat.jail.limits.nesting import Attempts
from exeat.jail.process import descriptors
from exeat.jail.process.command import become
from exeat.jail.process.place import Place, Step, report
from exeat.jail.signals import FOR_COMMAND, SI_USER, STOPPING, open_signalfd, read_signalfd, restore_signals

_TIOCSCTTY = 0x540E  # the same on every machine that there is a jail for
# How long the two halves of a signal to the group, to the runner and to init, can be apart.
_GROUP_MS = 50
_WALL = 0x40000000  # children of every kind; `os` has no name for it


def live_as_init(place: Place, control: socket.socket, positions: dict[int, int], *, is_root: bool) -> NoReturn:
    """From the fork on. `positions`: standard streams that are not the caller's own any more, and where they stood."""
    try:
        spec = place.spec
        _settle(place, control, is_root=is_root)
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signals = open_signalfd([signal.SIGCHLD, *FOR_COMMAND])
        if spec.terminal is not None:
            _lead_session(spec.terminal)
        attempts = Attempts(lambda name: messages.send(control, messages.NestingRefused(name)))
        ahead = _Ahead(place, control, attempts) if spec.is_late else None
        messages.send(control, messages.Word.READY)
        # The word to go comes when the builder is gone and the runner is our parent, not before.
        if ahead is not None:
            ahead.pass_on(control)  # so that it gets ready meanwhile
        message, _ = messages.receive(control)
        if message is not messages.Word.GO:
            os._exit(1)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if _is_gone(control):
            os._exit(1)
        if ahead is None:
            command = os.fork()
            if command == 0:
                _become_command(place, control, attempts)
        else:
            command = ahead.let_go()
        leads = spec.terminal is not None
        shares = spec.has_terminal and not leads
        watch = _Watch(command, signals, control, positions, attempts, leads_session=leads, shares_group=shares)
        watch.go_on(waits=spec.is_late)
    except BaseException as problem:
        report(control, "init", problem)
    finally:
        os._exit(1)  # whatever happens: this is a fork, and what called it is the runner's


def _lead_session(terminal: OwnTerminal) -> None:
    """Be to the command what a shell is to a job: without a parent in its session it could not be stopped (Ctrl-Z)."""
    with Step("terminal"):
        os.setsid()
        libc.call("ioctl", terminal.descriptor, _TIOCSCTTY, 0)


def _settle(place: Place, control: socket.socket, *, is_root: bool) -> None:
    """Lose every privilege. From here on this process can do no more than the command."""
    terminal = place.spec.terminal
    with Step("proc"):
        kernelfs.mount_proc(is_root=is_root)
        kept = place.view.tree.settle() if place.view.tree is not None else ()
    with Step("descriptors"):
        # What exeat's own process had open: its log, the sockets of the gateway, folders of the host.
        descriptors.close_all_but([control.fileno(), terminal.descriptor if terminal is not None else -1, *kept])
    with Step("privileges"):
        if place.run_as is not None:
            uid, gid = place.run_as
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            # Keeps the capabilities over the change of uid, for drop_all to give up one by one.
            libc.prctl(libc.PR_SET_KEEPCAPS, 1)
            os.setresuid(uid, uid, uid)
        privileges.drop_all()
        # Init is a copy of the runner: its memory and environment are not for the command to read.
        privileges.hide_arguments(b"exeat")
        privileges.hide_memory()
    with Step("own folder" if place.run_as else "folder"):
        os.chdir(place.spec.cwd)


def _is_gone(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


class _Ahead:
    """The command's process, before anyone knows what it is to be. It waits at the socket for that, and then for GO."""

    def __init__(self, place: Place, control: socket.socket, attempts: Attempts) -> None:
        self._channel, theirs = messages.open_channel()
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            _become_command(place, control, attempts, theirs)
        theirs.close()

    def pass_on(self, control: socket.socket) -> None:
        """What it is to become, and then its streams, which tell that it is going to be let go."""
        message: messages.Message | None = None
        while message is not messages.Word.STREAMS:
            message, streams = messages.receive(control, len(descriptors.STREAMS))
            if not isinstance(message, messages.Command) and message is not messages.Word.STREAMS:
                os._exit(1)
            messages.send(self._channel, message, streams)
            for each in streams:
                os.close(each)

    def let_go(self) -> int:
        with suppress(OSError):  # it has ended already, and said why
            messages.send(self._channel, messages.Word.GO)
        self._channel.close()
        return self._pid


def _become_command(
    place: Place, control: socket.socket, attempts: Attempts, told: socket.socket | None = None
) -> NoReturn:
    """`told`: where it is said what to become, if that is not known yet."""
    spec = place.spec
    try:
        if not spec.has_terminal:
            os.setsid()
        if spec.terminal is not None:
            os.setpgid(0, 0)
            os.tcsetpgrp(spec.terminal.descriptor, os.getpid())  # SIGTTOU is ignored until the next line
        restore_signals()
        shared_network = not place.own_network
        # Also keeps signals inside: the command is in its caller's process group, and so is who else runs in that job.
        scoped = privileges.scope_abstract_sockets()
        if place.life is not None:
            place.life(lambda message: messages.send(control, message))
        unix_sockets = scoped or not shared_network
        nesting.install_filter(attempts, place.nesting, unix_sockets=unix_sockets, shared_network=shared_network)
        if told is not None:
            _hear_command(place, told)
        become(place.paths, place.spec.argv, place.environ)
    except OSError as error:
        messages.send(control, messages.ExecFailed(error.errno or 0, error.strerror or str(error)))
    except BaseException as problem:
        report(control, "exec", problem)
    os._exit(127)


def _hear_command(place: Place, told: socket.socket) -> None:
    command, _ = messages.receive(told, 1)  # in a file, if it is long
    if not isinstance(command, messages.Command):
        os._exit(1)
    place.become(command)
    message, streams = messages.receive(told, len(descriptors.STREAMS))
    if message is not messages.Word.STREAMS:
        os._exit(1)
    descriptors.take_streams(streams)
    if messages.receive(told)[0] is not messages.Word.GO:
        os._exit(1)


class _Watch:
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
        """`positions`: of standard streams that were opened again. `shares_group`: with the caller of the run."""
        self._command = command
        self._attempts = attempts
        self._signals = signals
        self._control = control
        self._positions = positions
        self._leads_session = leads_session
        self._shares_group = shares_group
        self._freezer = _Freezer()
        self._waits = False
        self._seen: dict[int, float] = {}  # signals that came to the whole group, and when

    def go_on(self, *, waits: bool) -> NoReturn:
        """`waits`: to leave until the runner has. To take a process apart keeps a processor busy for a millisecond."""
        self._waits = waits
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
                match messages.receive(self._control)[0]:
                    case None:
                        os._exit(1)  # the runner is gone
                    case messages.PassSignal(number):
                        self._pass(number)

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
                messages.send(self._control, messages.Stopped(os.WSTOPSIG(status)))
            else:
                is_empty = _end_all()
                for stream, position in descriptors.moved(self._positions).items():
                    messages.send(self._control, messages.StreamMoved(stream, position))
                messages.send(self._control, messages.Emptied(status) if is_empty else messages.Exited(status))
                while self._waits and is_empty and messages.receive(self._control)[0] is not None:
                    pass
                os._exit(0)


def _end_all() -> bool:
    """Everything in the jail but us. False: the kernel has to, when we end.

    The runner would have to wait until the kernel has taken our memory and namespaces apart, which takes a millisecond.
    """
    try:
        os.kill(-1, signal.SIGKILL)  # in one step: none gets away by a fork
    except ProcessLookupError:
        pass  # the usual case: there is none
    except OSError:
        return False
    try:
        while True:
            os.waitpid(-1, _WALL)  # who loses its parent becomes our child
    except ChildProcessError:
        return True


class _Freezer:
    """All processes of the jail, stopped and let go on.

    When the command stops, exeat does, too, so that the shell it was started from sees a job that has stopped. Then
    no one watches what comes to be in shared folders, so nothing may run that could put something there.
    """

    def __init__(self) -> None:
        self._is_frozen = False
        self._stopped_before: frozenset[int] = frozenset()

    def freeze(self) -> None:
        if not self._is_frozen:
            self._stopped_before = frozenset(pid for pid in _others() if _is_stopped(pid))
        self._is_frozen = True
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)  # all but us, in one step: none gets away by a fork

    def thaw(self) -> None:
        """But for those that had stopped before, the command among them."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        for pid in _others():
            if pid not in self._stopped_before:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)


def _others() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False  # it has ended
