"""One gateway and one jail around one command, from the rules to the summary. The same steps for every jail."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from exeat.errors import ConfigError, JailError
from exeat.jail.jail import Built, Ended, Jail, OwnTerminal, Spec
from exeat.jail.select import Body, Hides, choose, open_jail
from exeat.jail.signals import STOPPING, SignalSource, remember_signals, waiting_end
from exeat.run.asks.terminal import Terminal
from exeat.run.command_files import CommandFiles, FilesByPath
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.nesting import advice_on_nesting, refuse_nesting
from exeat.run.outcome import GATEWAY_GONE, Outcome, announce, print_summary, say
from exeat.run.sealing import seal_imports
from exeat.run.settings import FilesSeen, Plan, Preparations, RunSettings, make_plan, variables_of
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.vm.options import VmOptions


class Finished(Value):
    """`status` is the exit status for our own process."""

    status: int
    outcome: Outcome
    plan: Plan  # as it was in the end
    files_seen: FilesSeen


class _Standing(Value):
    """A jail ready to be released."""

    body: Body
    jail: Jail
    built: Built
    files: CommandFiles
    spec: Spec


def run_in_jail(settings: RunSettings, gateway: GatewayProcess, log_files: tuple[str, ...] = ()) -> Finished:
    """Run the command in the jail that was asked for, or raise JailError. Never in another, and never in none."""
    bodies = choose(settings.jail)
    refuse_what_it_lacks(bodies[0], make_plan(settings, Preparations()))
    if bodies[0].warning:
        say(bodies[0].warning)
    jail = open_jail(bodies[0])  # loaded while the gateway process loads its own code, as is what sees to files
    _files_of(bodies[0].hides)
    remember_signals()
    # A secret's command may take long. While nothing else has begun, Ctrl-C does what it always does.
    plan = make_plan(settings, gateway.prepare(), log_files)
    refuse_what_it_lacks(bodies[0], plan)  # policy files are read by now
    terminal, signals = Terminal(), SignalSource()
    standing: _Standing | None = None
    try:
        terminal.ask_here(gateway.asking, apart=bodies[0].own_terminal)
        if bodies[0].own_kernel:
            terminal.goes_to_guest()
        standing = _build_first(bodies, jail, plan, terminal)
        # Nothing starts that could not be put on record, or judged by code that is not in memory yet.
        if settings.late is None:
            gateway.serve(standing.built, jail=standing.body.kind)
        else:
            plan = _serve_late(standing, gateway, plan)
        began = time.time()
        announce(plan.prepared, quiet=settings.quiet)
        seal_imports()
        ended = _run_to_the_end(standing, gateway, terminal, signals)
        terminal.end_questions()
        gateway.begin_to_stop()
        warnings = standing.files.sweep()
        seen = standing.files.end_layer(began)
        outcome = gateway.stop()._replace(nesters=ended.nesters)
        _tell(plan, standing.files, ended, outcome, warnings, terminal)
        return Finished(ended.status, outcome, plan, seen)
    finally:
        try:
            _take_down(standing, gateway)
        finally:
            terminal.give_back()
            terminal.close()
            signals.close()


def _serve_late(standing: _Standing, gateway: GatewayProcess, plan: Plan) -> Plan:
    """For a program that says only now what to run."""
    from exeat.jail.bodies.netns import NetnsJail
    from exeat.run.late import bind
    from exeat.run.viewed_files import ViewedFiles

    late, jail, files = plan.settings.late, standing.jail, standing.files
    assert late is not None
    assert isinstance(jail, NetnsJail)
    assert isinstance(files, ViewedFiles)
    return bind(late, plan, gateway, jail, files, standing.spec, standing.built)


def _take_down(standing: _Standing | None, gateway: GatewayProcess) -> None:
    """The command first, then the gateway, and then the jail: its rules hold until no one uses them."""
    if standing is None:
        gateway.kill()
        return
    try:
        standing.jail.end()
        gateway.kill()
        standing.jail.close()
    finally:
        standing.files.close()


def refuse_what_it_lacks(body: Body, plan: Plan) -> None:
    """What asks for something that this jail has not must not be taken for heard."""
    if body.own_kernel:
        from exeat.run.vm_settings import refuse_what_vms_lack  # for virtual machines

        refuse_what_vms_lack(plan)
    if plan.files.nest:
        refuse_nesting(body, plan.files)
    settings = plan.settings
    kind, without = f"--jail {body.kind}", "a jail that does, or no "
    if settings.unix and not body.hides_sockets:
        raise ConfigError(f"{kind} hides no sockets", where="--unix", expected=f"{without}--unix")
    if body.needs_variables and not settings.proxy_env:
        raise ConfigError(f"{kind} is nothing but these variables", where="--no-proxy-env", expected="another jail")
    if body.hides is Hides.BY_IMAGE:
        from exeat.run.container_files import refuse_what_containers_lack  # for containers

        refuse_what_containers_lack(plan)
    elif body.hides is not Hides.BY_MOUNTS:
        if settings.devices:
            raise ConfigError(f"{kind} hides no devices", where="--device", expected=f"{without}--device")
        for said in (*settings.files, *plan.prepared.files):
            if where := said.needs_view:
                expected = "a jail that does, or --files host alone"
                raise ConfigError(f"{kind} does not confine files", where=where, expected=expected)


def _build_first(bodies: list[Body], jail: Jail, plan: Plan, terminal: Terminal) -> _Standing:
    """Build the first of these that is available, which begins with that jail. Raises JailError."""
    for body, other in pairwise(bodies):
        try:
            return _build(body, jail, plan, terminal)
        except JailError as error:
            if not error.is_missing:
                raise
            say(f"{error.public} ({error.detail}); taking the {other.kind} jail instead")
            jail = open_jail(other)
    return _build(bodies[-1], jail, plan, terminal)


def _build(body: Body, jail: Jail, plan: Plan, terminal: Terminal) -> _Standing:
    settings, prepared = plan.settings, plan.prepared
    # Variables that the program is to pass on are there when the command is.
    asked = settings if settings.late is None else settings.replace(env=())
    files = _files_of(body.hides)(plan)
    try:
        spec = Spec(
            settings.argv,
            files.cwd,
            variables_of(asked, prepared, passes_on=not body.own_environment),
            has_terminal=terminal.exists,
            terminal=OwnTerminal(*terminal.own) if terminal.own is not None else None,
            view=files.view,
            hidden=files.hidden,
            unix=settings.unix,
            to_host=prepared.to_host,
            trust=prepared.trust,
            is_late=settings.late is not None,
            nest=plan.files.nest,
            container=settings.container,
            vm=_machine_of(settings),
            disk=files.disk,
            mounts=files.mounts,
            folder=files.folder,
            memory=files.memory,
        )
        built = jail.build(spec)
        files.begin(built)
    except BaseException:
        jail.close()
        files.close()
        raise
    return _Standing(body, jail, built, files, spec)


def _machine_of(settings: RunSettings) -> VmOptions | None:
    if settings.vm is None or settings.folder is None:
        return settings.vm
    from exeat.run.vm_settings import with_saved_machine  # for virtual machines

    return with_saved_machine(settings.vm, settings.folder)


def _files_of(hides: Hides) -> type[CommandFiles]:
    match hides:
        case Hides.BY_MOUNTS:
            from exeat.run.viewed_files import ViewedFiles  # Linux only

            return ViewedFiles
        case Hides.BY_PATH:
            return FilesByPath
        case Hides.BY_IMAGE:
            from exeat.run.container_files import ContainerFiles  # for containers

            return ContainerFiles
        case Hides.NOTHING:
            return CommandFiles


def _run_to_the_end(standing: _Standing, gateway: GatewayProcess, terminal: Terminal, signals: SignalSource) -> Ended:
    if number := waiting_end():  # for a command that is not there yet, and need not be
        standing.jail.end()
        return Ended(128 + number)
    try:
        terminal.begin()
        standing.jail.release()
        return standing.jail.attend(_Company(standing.files, gateway, terminal, signals))
    except BaseException:
        standing.jail.end()
        gateway.kill()
        # The command can have brought this about, with something in the project that is not to stay there.
        terminal.give_back()
        for line in standing.files.sweep():
            say(line)
        raise


class _Company:
    """What is seen to while the command runs."""

    def __init__(self, files: CommandFiles, gateway: GatewayProcess, terminal: Terminal, signals: SignalSource) -> None:
        self._files = files
        self._terminal = terminal
        self._signals = signals
        self.signals = signals.descriptor
        self.look_every_ms = files.look_every_ms
        self.why_end = files.why_end
        self.watched: dict[int, Callable[[], bool]] = {gateway.socket.fileno(): self._lose_gateway}
        if terminal.watched >= 0:
            self.watched[terminal.watched] = self._lose_terminal
        if files.descriptor >= 0:
            self.watched[files.descriptor] = self._look_at_files

    def _lose_gateway(self) -> bool:
        say(GATEWAY_GONE)
        return False

    def _lose_terminal(self) -> bool:
        self._terminal.lose()
        return False

    def _look_at_files(self) -> bool:
        self._files.attend()
        return True

    def take_signals(self) -> list[int]:
        terminal = self._terminal
        return [
            number
            for number, by_process in self._signals.read()
            if concerns_command(
                number, by_process=by_process, shares=terminal.is_shared, has_own=terminal.own is not None
            )
        ]

    def suspend(self) -> None:
        self._files.attend()  # nothing runs inside by now, and while we are stopped
        self._terminal.suspend()

    def resume(self) -> None:
        self._terminal.begin()


def concerns_command(number: int, *, by_process: bool, shares: bool, has_own: bool) -> bool:
    """May only this process have got the signal? What a terminal sends goes to the whole group, the command included.

    What a process sends may have gone to the group as well; init, which is in it, finds out. `shares`: the command has
    our terminal; `has_own`: another.
    """
    if number in STOPPING:
        # The command stops if it wants to, and then so do we. With a terminal of its own it has not had the key.
        return number == signal.SIGTSTP and has_own
    return number != signal.SIGCHLD and (by_process or not shares)


def _tell(
    plan: Plan, files: CommandFiles, ended: Ended, outcome: Outcome, warnings: list[str], terminal: Terminal
) -> None:
    """What the user is to know. Not silenced: why the command did not start, and what may be about to run outside."""
    quiet = plan.settings.quiet
    if ended.note:
        first, *more = ended.note.split("\n")
        for line in (first, *(f"  {each}" for each in more)):
            say(line)
    if ended.status and not quiet:
        for line in files.hints():
            say(line)
    if outcome.denied or outcome.failed or warnings or files.said:
        terminal.give_back()
    if (outcome.denied or outcome.failed) and not quiet:
        print_summary(outcome, plan.settings.name)
    for line in warnings:
        say(line)
    if not quiet:
        for line in (files.said, advice_on_nesting(outcome.nesters)):
            if line:
                say(line)
