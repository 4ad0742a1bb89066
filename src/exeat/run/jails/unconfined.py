"""A command beside its gateway instead of in a jail: it is told of the gateway by variables. Any POSIX system.

This is not a boundary, and it must never be taken for one: a program that ignores the variables reaches everything.
The command is a plain child in our process group, so the terminal treats both as one job. Only if questions are asked
on that terminal, the command gets one of its own.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from exeat.errors import ConfigError
from exeat.jail.net.network import Sockets
from exeat.jail.process.becoming import become, places_of
from exeat.jail.signals import remember_signals, restore_signals, waiting_end
from exeat.run.asks.terminal import Terminal
from exeat.run.environment import build_environment, inherited_environment
from exeat.run.gateway_process.preparations import Preparations
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.jails.signal_source import SignalSource
from exeat.run.jails.trust_folder import TrustFolder
from exeat.run.sealing import seal_imports
from exeat.run.settings import RunSettings
from exeat.run.summary import GATEWAY_GONE, announce, print_summary, say

_BACKLOG = 4_096
_USER = "exeat"
_WARNING = (
    "exeat: --jail env is NOT a boundary: it only sets proxy variables, and a program that ignores them "
    "reaches everything; files are not confined at all\n"
)


class _Command(NamedTuple):
    argv: list[str]
    environ: dict[str, str]
    places: list[str]  # where its program may be


Wrap = Callable[[list[str], int], list[str]]  # the command line and the gateway's port -> the command line to run


def run_with_variables(settings: RunSettings, gateway: GatewayProcess) -> int:
    """Run the command with proxy variables. Gives the exit status for our own process."""
    if settings.unix:
        raise ConfigError("--jail env hides no sockets", where="--unix", expected="a jail that does, or no --unix")
    if not settings.proxy_env:
        raise ConfigError("--jail env is nothing but these variables", where="--no-proxy-env", expected="another jail")
    sys.stderr.write(_WARNING)
    sys.stderr.flush()
    return run_beside_gateway(settings, gateway, "env", lambda argv, port: argv)


def run_beside_gateway(settings: RunSettings, gateway: GatewayProcess, jail: str, wrap: Wrap) -> int:
    """Start a gateway, run the command that `wrap` makes with its variables set, and stop the gateway."""
    if settings.devices:
        expected = "a jail that does, or no --device"
        raise ConfigError(f"--jail {jail} hides no devices", where="--device", expected=expected)
    _refuse_file_settings(settings, jail)
    remember_signals()
    prepared = gateway.preparations()
    _refuse_file_settings(settings, jail)  # those of policy files, which are known by now
    terminal = Terminal()
    trust = signals = None
    try:
        # Nothing starts that could not be put on record.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        port = listener.getsockname()[1]
        # Every user of the machine can connect to the port; only the command knows this.
        password = os.urandom(16).hex()
        trust = TrustFolder(prepared)
        url = f"http://{_USER}:{password}@127.0.0.1:{port}"
        environ = _environment(settings, url, prepared, trust)
        argv = wrap(settings.argv, port)
        command = _Command(argv, environ, places_of(argv[0], environ))
        signals = SignalSource(has_terminal=terminal.exists and gateway.asking is None)
        terminal.ask_here(gateway.asking)
        gateway.serve(Sockets([listener], [], [], []), jail=jail, credentials=(_USER, password))
        announce(prepared, quiet=settings.quiet)
        seal_imports()
        status, note = _run(settings.argv[0], command, gateway, signals, terminal)
        terminal.end_questions()
        outcome = gateway.stop()
        if note:
            say(note)
        if (outcome.denied or outcome.failed) and not settings.quiet:
            terminal.give_back()
            print_summary(outcome, settings.name)
        return status
    finally:
        if trust is not None:
            trust.remove()
        terminal.give_back()
        terminal.close()
        if signals is not None:
            signals.close()


def _refuse_file_settings(settings: RunSettings, jail: str) -> None:
    """There is no view of files here: what asks for one must not be taken for heard."""
    for said in settings.files_said:
        if where := said.needs_view:
            raise ConfigError(
                f"--jail {jail} does not confine files", where=where, expected="a jail that does, or --files host alone"
            )


def _environment(settings: RunSettings, url: str, prepared: Preparations, trust: TrustFolder) -> dict[str, str]:
    inherited = inherited_environment(settings.environ)
    return build_environment(
        inherited,
        settings.env,
        clean=settings.clean_env,
        proxy_url=url if settings.proxy_env else None,
        own_loopback=False,
        kept_sockets=inherited.values(),  # no socket is hidden, so their names stay
        placeholders=prepared.placeholders,
        trust=trust.variables(inherited),
        sandbox=settings.name,
    )


def _run(
    name: str,
    command: _Command,
    gateway: GatewayProcess,
    signals: SignalSource,
    terminal: Terminal,
) -> tuple[int, str]:
    """Until the command ends: its exit status as a shell counts it, and a note if it could not be started."""
    if number := waiting_end():  # for a command that is not there yet, and need not be
        return 128 + number, ""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, writer, terminal)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure = pipe.read()  # ends when the command has taken over
    if failure:
        os.waitpid(pid, 0)
        number = int(failure)
        return (127 if number == errno.ENOENT else 126), f"{name}: {os.strerror(number)}"
    terminal.begin()
    status = _attend(pid, gateway, signals, terminal)
    return (128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), ""


def _become(command: _Command, writer: int, terminal: Terminal) -> NoReturn:
    if terminal.own is None:
        _become_command(command, writer)
    terminal.lead_job(lambda: _become_command(command, writer))


def _become_command(command: _Command, writer: int) -> NoReturn:
    try:
        restore_signals()
        become(command.places, command.argv, command.environ)
    except OSError as error:
        os.write(writer, str(error.errno or errno.EIO).encode())
    except BaseException:
        os.write(writer, str(errno.EINVAL).encode())
    finally:
        os._exit(127)


def _attend(pid: int, gateway: GatewayProcess, signals: SignalSource, terminal: Terminal) -> int:
    """Wait for the command's end and pass on signals that only we have got."""
    served, relay = gateway.socket.fileno(), terminal.watched
    watched = [each for each in (served, signals.descriptor, relay) if each >= 0]
    while True:
        changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if changed and os.WIFSTOPPED(status):
            terminal.suspend()
            os.kill(pid, signal.SIGCONT)  # whoever made us go on may have meant only us
            terminal.begin()
            continue
        if changed:
            return status
        ready, _, _ = select.select(watched, [], [])
        if signals.descriptor in ready:
            for number in signals.read():
                os.kill(pid, number)  # not reaped yet, so the number is still the command's
        if relay in ready:
            watched.remove(relay)
            terminal.lose()
        if served in ready:
            watched.remove(served)
            say(GATEWAY_GONE)
