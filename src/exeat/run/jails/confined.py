"""A command in a jail of namespaces: build, start the gateway on the jail's sockets, let go, and wait."""

from __future__ import annotations

import select
import signal
import time

from exeat.jail.bodies.namespaces import Event
from exeat.jail.process.builder import OwnTerminal
from exeat.jail.process.descriptors import ways_out
from exeat.jail.signals import (
    FOR_COMMAND,
    SI_USER,
    STOPPING,
    open_signalfd,
    read_signalfd,
    remember_signals,
    waiting_end,
)
from exeat.run.asks.terminal import Terminal
from exeat.run.environment import inherited_environment
from exeat.run.files.hints import name_hidden_keys
from exeat.run.files.own_code import advice_on_installing, warning_of_second_names
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.jails.cell import Cell, open_cell
from exeat.run.jails.nested import advice_on_nesting
from exeat.run.sealing import seal_imports
from exeat.run.settings import FilesSeen, RunSettings
from exeat.run.summary import GATEWAY_GONE, LAYER_FULL, announce, print_summary, say


def run_confined(settings: RunSettings, gateway: GatewayProcess) -> int:
    """Run the command to its end. Gives the exit status for our own process."""
    remember_signals()
    if settings.may_intercept:
        # A secret's command may take long. While nothing else has begun, Ctrl-C does what it always does.
        gateway.preparations()
    if not settings.quiet:
        _tell_what_is_closed(settings.ask_fd, files_too=settings.files.mode == "view")
        _say_if_any(warning_of_second_names())
    terminal = Terminal()
    # To stop at once when the terminal says so would mean to stop again at the news of the command's stop.
    signals = open_signalfd((*FOR_COMMAND, *STOPPING))
    try:
        terminal.ask_here(gateway.asking)
        own = OwnTerminal(*terminal.own) if terminal.own is not None else None
        cell = open_cell(settings, gateway, new_session=not terminal.exists, terminal=own)
    except BaseException:
        terminal.close()
        raise
    try:
        began = time.time()
        ended = _run_in(cell, gateway, terminal, signals, quiet=settings.quiet)
        terminal.end_questions()
        warnings = cell.sweep()
        layer = cell.end_layer(settings, began)
        settings.files_seen = FilesSeen(layer.changes.paths, layer.changes.is_complete)
        outcome = gateway.outcome = gateway.stop()._replace(nesters=tuple(cell.jail.tried))
        if ended.note:
            say(ended.note)
        if ended.value and not settings.quiet:
            for line in name_hidden_keys(cell.seen.hidden, settings.argv):
                say(line)
            _say_if_any(advice_on_installing(settings.argv, inherited_environment(settings.environ)))
        if (outcome.denied or outcome.failed) and not settings.quiet:
            terminal.give_back()
            print_summary(outcome, settings.name)
        for line in warnings:  # not silenced: something may be about to run outside
            terminal.give_back()
            say(line)
        if layer.said and not settings.quiet:
            terminal.give_back()
            say(layer.said)
        if not settings.quiet:
            _say_if_any(advice_on_nesting(outcome.nesters))
        return ended.value
    finally:
        cell.close()
        terminal.give_back()
        terminal.close()


def _say_if_any(text: str) -> None:
    if text:
        say(text)


def _tell_what_is_closed(own: int, *, files_too: bool) -> None:
    """Of what our caller left open for the command. `own` is one that is for us."""
    closed = [f"{number} ({what})" for number, what in sorted(ways_out(files_too=files_too).items()) if number != own]
    if closed:
        say(f"not passed on to the command: open file {', '.join(closed)}")


def _run_in(cell: Cell, gateway: GatewayProcess, terminal: Terminal, signals: int, *, quiet: bool) -> Event:
    try:
        # Nothing starts that could not be put on record, or judged by code that is not in memory yet.
        gateway.serve(cell.sockets, jail=cell.kind, credentials=cell.credentials, init=cell.jail.init)
        announce(gateway.preparations(), quiet=quiet)
        seal_imports()
        if number := waiting_end():  # for a command that is not there yet, and need not be
            cell.jail.kill()
            return Event("ended", 128 + number)
        terminal.begin()
        cell.jail.release()
        return _attend(cell, gateway, signals, terminal)
    except BaseException:
        cell.jail.kill()
        # The command can have brought this about, with something in the project that is not to stay there.
        terminal.give_back()
        for line in cell.sweep():
            say(line)
        raise


def _attend(cell: Cell, gateway: GatewayProcess, signals: int, terminal: Terminal) -> Event:
    """Wait for the command's end, passing signals on and stopping when it stops."""
    poll = select.poll()
    jail = cell.jail
    control = jail.control.fileno()
    relay = terminal.watched
    guard = cell.guard.descriptor if cell.guard is not None else -1
    for descriptor in (control, signals, gateway.socket.fileno(), relay, guard):
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    while True:
        ready = poll.poll(cell.seen.look_every_ms)
        if cell.seen.is_full():
            jail.kill()
            return Event("ended", 128 + signal.SIGKILL, LAYER_FULL)
        for descriptor, _ in ready:
            if descriptor == signals:
                for number, code, _ in read_signalfd(signals):
                    if _concerns_command(number, code, has_terminal=terminal.is_shared):
                        jail.pass_signal(number)
                    elif number == signal.SIGTSTP and not terminal.is_shared and terminal.exists:
                        jail.pass_signal(number)  # from a process: the keys are in the command's own terminal
            elif descriptor == control:
                event = jail.receive()
                if event is not None and event.kind == "ended":
                    return event
                if event is not None:
                    if cell.guard is not None:
                        cell.guard.attend()  # nothing runs inside by now, and while we are stopped
                    terminal.suspend()
                    jail.pass_signal(signal.SIGCONT)  # only we are told to go on if it has a session of its own
                    terminal.begin()
            elif descriptor == guard and cell.guard is not None:
                cell.guard.attend()
            elif descriptor == relay:
                poll.unregister(descriptor)
                terminal.lose()
            else:
                poll.unregister(descriptor)
                say(GATEWAY_GONE)


def _concerns_command(number: int, code: int, *, has_terminal: bool) -> bool:
    """May only this process have got the signal? What a terminal sends goes to the whole group, the command included.

    What a process sends may have gone to the group as well; init, which is in it, finds out.
    """
    if number in STOPPING:
        return False  # the command stops if it wants to, and then so do we
    return not has_terminal or code <= SI_USER
