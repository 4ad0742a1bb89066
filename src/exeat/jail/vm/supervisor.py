"""The command of a jail with a virtual machine: it starts QEMU, and is to the guest's command what a shell would be.

It is a fork of init, and so exeat's own code; it moves the caller's streams, passes signals on, and ends as the guest's
command ends. What comes from the guest is its output and its status, and is trusted for nothing else.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from exeat.errors import ExeatError
from exeat.jail import messages
from exeat.jail.limits import seccomp
from exeat.jail.signals import FOR_COMMAND, STOPPING, open_signalfd, read_signalfd
from exeat.jail.vm import last_words, protocol
from exeat.jail.vm.caller import CallersTerminal, to_write_to
from exeat.jail.vm.children import QEMU, Children
from exeat.jail.vm.files.seed import SeedServer
from exeat.jail.vm.guest import Guest, GuestError
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.options import TIMED_OUT
from exeat.jail.vm.protocol import Kind
from exeat.jail.vm.pump import Pump, Tail
from exeat.jail.vm.settings import ENTROPY, start_text

if TYPE_CHECKING:
    from exeat.jail.vm.saved.continuing import Continuing

_CONSOLE_BYTES: Final = 64 << 10
_CONSOLE_LINES: Final = 1_000
_SHOWN_LINES: Final = 20
_SHOWN_CHARACTERS: Final = 10_000  # what the guest says must fit into one message
_END_S: Final = 5.0  # for a guest that was told to end
_LAST_BYTES_S: Final = 10.0  # for output that the guest says it has written
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def live_as_supervisor(guest: Guest, tell: Callable[[messages.Message], None]) -> NoReturn:
    """In the command's process, which has lost all privileges. Never returns."""
    supervisor = Supervisor(guest, tell)
    try:
        status = supervisor.run()
    except GuestError as error:
        supervisor.end()
        if supervisor.has_begun:
            tell(messages.GuestEnded(error.public, error.detail))
            status = 128 + signal.SIGKILL  # as of a command that was killed
        else:
            tell(messages.GuestFailed(error.public, error.detail, error.fix))
            status = 1
    except BaseException as problem:
        supervisor.end()
        tell(messages.GuestFailed("the virtual machine has failed", f"{type(problem).__name__}: {problem}", ""))
        status = 1
    finally:
        supervisor.end()
    os._exit(status)


class Supervisor:
    def __init__(self, guest: Guest, tell: Callable[[messages.Message], None]) -> None:
        self._guest = guest
        self._tell = tell
        self._seeds: SeedServer | None = None
        self._terminal = CallersTerminal()
        self._children = Children()
        self._frames = protocol.Frames(protocol.GUEST_LIMIT)
        self._to_guest = b""
        self._is_greeted = False
        self._is_running = False
        self._input_ended = False
        self._exited: protocol.Exited | None = None
        self._not_started = False
        self._ends_at: float | None = None
        self._why_ending = 0  # a status, once the guest was told to end
        self._is_gone = False
        self._lost: GuestError | None = None

    @property
    def has_begun(self) -> bool:
        """Has the guest's command been started?"""
        return self._is_running

    def run(self) -> int:
        """The status for our own process. Raises GuestError."""
        if self._guest.seed is not None:
            self._seeds = SeedServer(self._guest.seed)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # of a reader, or a QEMU, that is gone we hear by an error
        ours = self._start_machine() if self._guest.continues is None else self._continue_machine(self._guest.continues)
        seccomp.install(seccomp.build_filter(os.uname().machine))
        self._signals = open_signalfd([*FOR_COMMAND, *STOPPING[:1], signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH])
        self._control = ours["control"]
        self._input = Pump(0, ours["in"].fileno())
        sinks = {"out": 1, "err": 2}
        self._outputs = {name: Pump(ours[name].fileno(), to_write_to(sink)) for name, sink in sinks.items()}
        self._console = Tail(ours["console"].fileno(), _CONSOLE_BYTES)
        self._ours = ours
        now = time.monotonic()
        self._boot_ends = now + self._guest.boot_limit_s
        self._time_ends = now + self._guest.time_limit_s if self._guest.time_limit_s else None
        if self._machine.is_continued:
            self._greet(protocol.VERSION)  # it has greeted when it was saved
        return self._attend()

    def _attend(self) -> int:
        while not self._is_over():
            try:
                self._step()
            except GuestError as error:
                if not self._is_running:
                    raise
                self._lose(error)
        return self._status()

    def _continue_machine(self, saved: Continuing) -> dict[str, socket.socket]:
        """While another one can still be started: it boots, if it must."""
        try:
            with saved.prepared(self._guest.machine) as (machine, devices):
                ours = self._start_processes(machine)
                saved.resume(self._machine, ours["qmp"], devices)
                return ours
        except (ExeatError, OSError) as error:
            self.end()
            if note := saved.why_not(error):
                self._tell(messages.GuestNote(note))
            return self._start_machine()

    def _start_machine(self) -> dict[str, socket.socket]:
        machine = self._guest.machine
        return self._start_processes(self._guest.saves.prepare(machine) if self._guest.saves else machine)

    def _start_processes(self, machine: Machine) -> dict[str, socket.socket]:
        guest = self._guest
        said, says = os.pipe()
        os.set_blocking(said, False)
        self._said = Tail(said, _CONSOLE_BYTES)
        self._machine, ours = self._children.start(machine, guest.tree, guest.served, guest.disk, errors=says)
        os.close(says)
        return ours

    # One round

    def _step(self) -> None:
        poll = select.poll()
        for_guest = select.POLLOUT if self._to_guest else 0
        wishes = [(self._signals, select.POLLIN)]
        if not self._is_gone:
            wishes.append((self._control.fileno(), select.POLLIN | for_guest))
        for part in self._parts():
            wishes += part.wishes()
        events: dict[int, int] = {}
        for descriptor, wanted in wishes:
            events[descriptor] = events.get(descriptor, 0) | wanted
        for descriptor, wanted in events.items():
            poll.register(descriptor, wanted)
        ready = dict(poll.poll(self._wait_ms()))
        if self._signals in ready:
            self._take_signals()
        if self._control.fileno() in ready:
            self._talk(ready[self._control.fileno()])
        for part in self._parts():
            part.move(ready)
        self._see_to_streams()
        self._see_to_time()

    def _parts(self) -> list[Pump | Tail | SeedServer]:
        parts: list[Pump | Tail | SeedServer] = [*self._outputs.values(), self._console, self._said]
        if self._seeds is not None:
            parts.append(self._seeds)
        if self._is_running and not self._exited and not self._input.is_broken:
            parts.append(self._input)
        return parts

    def _see_to_streams(self) -> None:
        if self._input.has_ended and self._input.is_empty and not self._input_ended:
            self._input_ended = True
            self._send(protocol.input_end(self._input.sent))
        for name, pump in self._outputs.items():
            if pump.is_broken and name in self._ours:
                self._ours.pop(name).close()  # the guest's command gets SIGPIPE when it writes

    # The guest's agent

    def _send(self, frame: bytes) -> None:
        self._to_guest += frame
        self._flush()

    def _flush(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._to_guest = self._to_guest[self._control.send(self._to_guest) :]

    def _talk(self, events: int) -> None:
        if self._to_guest and events & select.POLLOUT:
            self._flush()
        if not events & (select.POLLIN | select.POLLHUP):
            return
        try:
            data = self._control.recv(protocol.GUEST_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._gone(QEMU, self._children.await_qemu())
        try:
            for kind, payload in self._frames.feed(data):
                self._hear(kind, payload)
        except protocol.BadFrameError as error:
            raise GuestError("the guest's agent does not keep to the protocol", detail=error.public) from None

    def _hear(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.HELLO if not self._is_greeted:
                self._greet(protocol.read_hello(payload))
            case Kind.RUNNING:
                self._is_running, self._boot_ends = True, float("inf")
            case Kind.FAILED:
                failed = protocol.read_failed(payload)
                raise GuestError(f"the guest could not be set up: {failed.text}", detail=self._why(failed.errno))
            case Kind.EXEC_FAILED if not self._is_running:
                number = protocol.read_exec_failed(payload)
                self._not_started = True
                self._tell(messages.ExecFailed(number, os.strerror(number) if number < 200 else "unknown"))
                self._exited = protocol.Exited(0, 0, 0)
            case Kind.STOPPED if self._is_running:
                protocol.read_stopped(payload)
                if self._terminal.exists or self._time_ends is None:  # else none lets us go on, and time does
                    self._stop()
            case Kind.EXITED if self._exited is None:
                self._exited = protocol.read_exited(payload)
                self._ends_at = self._ends_at or time.monotonic() + _LAST_BYTES_S
            case _:
                pass

    def _greet(self, version: int) -> None:
        if version != protocol.VERSION:
            raise GuestError("the guest's agent is of another version", detail=f"{version}, not {protocol.VERSION}")
        self._is_greeted = True
        guest = self._guest
        if guest.disk is not None:
            guest.disk.bound(self._children.qemu, memory=0)
        if guest.saves is not None:
            guest.saves.save(self._machine, self._ours["qmp"])
            self._exited = protocol.Exited(0, 0, 0)
            return
        os.umask(umask := os.umask(0))
        text = start_text(
            guest.settings,
            guest.argv,
            guest.environ,
            time_ns=time.time_ns(),
            entropy=os.urandom(ENTROPY),
            terminal=self._terminal.size(),
            umask=umask,
        )
        self._terminal.take()
        self._send(protocol.encode(Kind.START, text))

    # Signals

    def _take_signals(self) -> None:
        for number, _, _ in read_signalfd(self._signals):
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGWINCH:
                if self._is_running and (size := self._terminal.size()):
                    self._send(protocol.window(*size))
            elif self._is_running:
                if number != signal.SIGCONT:
                    self._send(protocol.signal(number))
            elif number == signal.SIGTSTP:
                began = time.monotonic()
                os.kill(os.getpid(), signal.SIGSTOP)
                self._boot_ends += time.monotonic() - began
            elif number in _ENDING:
                self.end()
                os._exit(128 + number)

    def _stop(self) -> None:
        """The guest's command has stopped, and so do we; the process that waits for us stops the whole jail."""
        self._terminal.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.take()
        if size := self._terminal.size():
            self._send(protocol.window(*size))
        self._send(protocol.signal(signal.SIGCONT))

    def _reap(self) -> None:
        for what, status in self._children.buried():
            if what != QEMU and not status:
                continue  # it ends when QEMU does
            if what and not self._exited:
                self._said.take()
                if what == QEMU and self._read_last_words():
                    continue
                raise self._gone(what, status)

    def _read_last_words(self) -> bool:
        """QEMU has ended, and may have passed on how the command did."""
        with suppress(OSError, ExeatError):
            while data := self._control.recv(protocol.GUEST_LIMIT):
                for kind, payload in self._frames.feed(data):
                    self._hear(kind, payload)
        return self._exited is not None

    # Time

    def _wait_ms(self) -> float | None:
        ends = [each for each in (self._ends_at, self._time_ends, self._boot_ends) if each is not None]
        nearest = min(ends)
        return None if nearest == float("inf") else max(0.0, (nearest - time.monotonic()) * 1_000) + 1

    def _see_to_time(self) -> None:
        now = time.monotonic()
        if now >= self._boot_ends:
            reason = f"the guest did not boot within {self._guest.boot_limit_s:g} s"
            self._tell(messages.GuestEnded(reason, self._shown()))
            self.end()
            os._exit(TIMED_OUT)
        if self._time_ends is not None and now >= self._time_ends:
            self._time_ends = None
            self._why_ending = TIMED_OUT
            self._send(protocol.encode(Kind.END))
            self._ends_at = now + (_END_S if self._is_running else 0)

    def _is_over(self) -> bool:
        late = self._ends_at is not None and time.monotonic() >= self._ends_at
        if (self._exited is None and not self._is_gone) or (late and self._why_ending):
            return late
        if not all(pump.is_empty for pump in self._outputs.values()):
            if not self._why_ending:
                self._ends_at = time.monotonic() + _LAST_BYTES_S  # a slow reader's time is not the guest's
            return False
        if self._not_started or late:
            return True
        return not any(
            (self._exited is None or pump.received < getattr(self._exited, name))
            and not (pump.has_ended or pump.is_broken)
            for name, pump in self._outputs.items()
        )

    def _status(self) -> int:
        if self._lost is not None:
            raise self._lost
        if self._why_ending:
            hangs = "; it no longer answered, and was powered off" if self._is_hanging() else ""
            reason = f"the guest's time was up ({self._guest.time_limit_s:g} s){hangs}"
            self._tell(messages.GuestEnded(reason, "" if self._exited else self._shown()))
            return self._why_ending
        if self._not_started or self._exited is None:
            return 127
        ended = self._exited.status
        status = 128 + os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)
        for fault in {pump.fault for pump in self._outputs.values() if pump.fault}:
            self._tell(messages.GuestNote(f"not all of the command's output could be written: {fault}"))
            status = status or 1  # the command has been told that it was
        return status

    def _is_hanging(self) -> bool:
        """Not if it only waits for a reader."""
        waits = not all(pump.is_empty for pump in self._outputs.values())
        return self._is_running and not (self._exited or self._is_gone or waits)

    # The end

    def _lose(self, error: GuestError) -> None:
        """The guest is gone, or is not to go on. What it wrote before is on its way, and has an end now."""
        self._children.end()
        self._is_gone = True
        if self._exited is None and not self._why_ending:
            self._lost, self._ends_at = error, time.monotonic() + _LAST_BYTES_S

    def _gone(self, what: str = QEMU, status: int | None = None) -> GuestError:
        detail, said, console = self._shown(), self._said.lines(_CONSOLE_LINES), self._console.lines(_CONSOLE_LINES)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        why = last_words.why_gone(what, code, console, has_begun=self.has_begun, said=said)
        return GuestError(why, detail=detail, fix=last_words.what_helps(said))

    def _why(self, number: int) -> str:
        told = f"{errno.errorcode.get(number, number)}: {os.strerror(number)}" if 0 < number < 200 else ""
        return "\n".join(filter(None, (told, self._shown())))

    def _shown(self) -> str:
        """What QEMU said, and the end of the guest's console."""
        self._said.take()
        self._console.take()
        said, console = self._said.lines(_CONSOLE_LINES), self._console.lines(_CONSOLE_LINES)
        return "\n".join(last_words.shown(said, console, _SHOWN_LINES))[-_SHOWN_CHARACTERS:]

    def end(self) -> None:
        self._terminal.give_back()
        self._children.end()
