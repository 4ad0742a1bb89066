"""The order of things in `exeat run`: jail and rules at the same time, then the gateway, then the command."""

from __future__ import annotations

import os
import select
import signal
import sys

from exeat.errors import ConfigError, ExeatError, JailError
from exeat.jail.descriptors import ensure_standard_streams
from exeat.jail.signals import SI_USER, open_signalfd, read_signalfd, remember_signals
from exeat.jail.warden import Event, Warden
from exeat.run.cell import Cell, open_cell
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.settings import RunSettings
from exeat.run.summary import print_summary
from exeat.run.terminal import Terminal

# Signals that are the command's business: read as data, with their sender, and passed on if it has not got them.
_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# A terminal sends these to the whole group. To stop at once would mean to stop again at the news of the command's stop.
_STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def run(settings: RunSettings) -> int:
    """Run the command to its end. Gives the exit status for our own process."""
    if not settings.argv:
        raise ConfigError("no command given", where="exeat run", expected="exeat run [OPTION...] -- COMMAND [ARG...]")
    if settings.jail == "env":
        from exeat.run.unconfined import run_with_variables  # noqa: PLC0415 - not the usual way

        return run_with_variables(settings)
    if settings.jail == "seatbelt" or (settings.jail == "auto" and sys.platform == "darwin"):
        from exeat.run.seatbelt_run import run_in_seatbelt  # noqa: PLC0415 - macOS only

        return run_in_seatbelt(settings)
    if not sys.platform.startswith("linux"):
        raise JailError(
            f"the {'netns' if settings.jail == 'auto' else settings.jail} jail needs Linux",
            detail=f"this is {sys.platform}",
            fix="--jail env sets proxy variables, which is not a boundary",
        )
    ensure_standard_streams()
    remember_signals()
    terminal = Terminal()
    signals = open_signalfd((*_PASSED_ON, *_STOPPING))
    cell = open_cell(settings, new_session=not terminal.exists)
    try:
        return _run_in(cell, settings, terminal, signals)
    finally:
        cell.close()
        terminal.give_back()
        terminal.close()


def _run_in(cell: Cell, settings: RunSettings, terminal: Terminal, signals: int) -> int:
    gatekeeper = Gatekeeper(
        cell.policy,
        cell.limits,
        cell.sockets,
        jail=cell.kind,
        audit=settings.audit,
        credentials=cell.credentials,
        not_for_it=(cell.warden.control.fileno(), signals),
    )
    try:
        if settings.audit is not None:
            gatekeeper.wait_ready()  # nothing starts that could not be put on record
        cell.warden.release()
        ended = _attend(cell.warden, gatekeeper, signals, has_terminal=terminal.exists)
    except BaseException:
        gatekeeper.kill()
        cell.warden.kill()
        raise
    blocked = gatekeeper.stop(must_finish=settings.audit is not None)
    if ended.note:
        _say(ended.note)
    if blocked and not settings.quiet:
        terminal.give_back()
        print_summary(blocked, sys.stderr)
    return ended.value


def _attend(warden: Warden, gatekeeper: Gatekeeper, signals: int, *, has_terminal: bool) -> Event:
    """Wait for the command's end, passing signals on and stopping when it stops."""
    poll = select.poll()
    control = warden.control.fileno()
    for descriptor in (control, signals, gatekeeper.socket.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == signals:
                for number, code, sender in read_signalfd(signals):
                    if _concerns_command(number, code, sender, has_terminal=has_terminal):
                        warden.pass_signal(number)
            elif descriptor == control:
                event = warden.receive()
                if event is not None and event.kind == "ended":
                    return event
                if event is not None:
                    os.kill(os.getpid(), signal.SIGSTOP)  # so that the shell sees its job stopped
                    warden.pass_signal(signal.SIGCONT)  # only we are told to go on if it has a session of its own
            else:
                try:
                    gatekeeper.news()
                except ExeatError as error:
                    if not gatekeeper.was_ready:
                        raise
                    poll.unregister(descriptor)
                    _say(error.public)


def _concerns_command(number: int, code: int, sender: int, *, has_terminal: bool) -> bool:
    """Has only this process got the signal? What a terminal sends goes to the whole group, the command included."""
    if number in _STOPPING:
        return False  # the command stops if it wants to, and then so do we
    if not has_terminal:
        return True
    return code <= SI_USER and not _is_inside(sender)


def _is_inside(pid: int) -> bool:
    """Is the sender a process of a jail? It has reached its group by itself, as `kill 0` does."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _say(text: str) -> None:
    sys.stderr.write(f"exeat: {text}\n")
    sys.stderr.flush()
