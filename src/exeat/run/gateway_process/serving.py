"""In the gateway process: serves the sockets until the run is over, and reports what was blocked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from exeat.gateway.gates.resolve import load_system_resolver
from exeat.gateway.gateway import Gateway
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.gateway.record.counters import Counters, Entry, KeptList, describe_allowed, describe_denied, describe_failed
from exeat.jail.messages import Over, Serve, Take, Word, receive, send
from exeat.policy import Policy
from exeat.run.gateway_process.rules import ReadRules
from exeat.run.outcome import Outcome
from exeat.run.sealing import GATEWAY, INTERCEPTION, ROTATION, seal_imports
from exeat.run.settings import RunSettings

if TYPE_CHECKING:
    from exeat.gateway.gates.questions import WhoAsks
    from exeat.run.gateway_process.intercepting import Intercepting
    from exeat.run.gateway_process.oversight import Oversight
    from exeat.run.late import Late


_MAX_HANDED = 16
_SETTLE_S = 0.5


def serve_run(
    settings: RunSettings, rules: ReadRules, control: socket.socket, asked: socket.socket | None = None
) -> None:
    """Until the other side closes its end. Raises ConfigError for secrets without a value, for example.

    `asked`: someone at the other end answers what no rule does.
    """
    intercepting: Intercepting | None = None
    if rules.looks_inside:
        from exeat.run.gateway_process.intercepting import Intercepting  # takes 100 ms to load

        intercepting = Intercepting(rules.loaded, settings.upstream_ca)
        intercepting.tell_trust(control, settings.environ)
        if settings.late is None:
            intercepting.fetch(control, settings.environ, settings.folder)
        intercepting.load()
    raise_descriptor_limit()
    run_in_loop(_serve(settings, rules, intercepting, control, asked))


def _receive(control: socket.socket) -> tuple[Serve, dict[str, list[socket.socket]]] | None:
    """What the runner hands over once the jail stands."""
    message, received = receive(control, _MAX_HANDED)
    if not isinstance(message, Serve):
        return None
    sockets: dict[str, list[socket.socket]] = {"tcp": [], "udp": [], "dns": [], "log": []}
    for kind, descriptor in zip(message.kinds, received, strict=True):
        sockets[kind].append(socket.socket(fileno=descriptor))
    return message, sockets


def _take(late: Late, control: socket.socket) -> dict[bytes, bytes] | None:
    """Get ready for a command that is known now. Its environment, if that is not ours."""
    late.leave()
    message, received = receive(control, 2)
    if not isinstance(message, Take):
        raise SystemExit(0)  # there will be no run
    given = late.adopt(message, received[0], received[-1])
    for each in received:
        os.close(each)
    return given


def _await_certainty(control: socket.socket) -> None:
    """Until the jail is known to be right for the command. What is to be complained of goes to its streams."""
    control.setblocking(True)
    message, received = receive(control, 1)
    for each in received:
        os.dup2(each, 2, inheritable=True)
        os.close(each)
    if message is not Word.STREAMS:
        raise SystemExit(0)  # there will be no run


async def _serve(
    settings: RunSettings,
    rules: ReadRules,
    intercepting: Intercepting | None,
    control: socket.socket,
    asked: socket.socket | None,
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    # Nothing else goes on in this loop yet, so it may stand still.
    given = _take(settings.late, control) if settings.late is not None else None
    if (received := _receive(control)) is None:
        return 0  # there will be no run
    handed, sockets = received
    load_system_resolver()
    is_late = settings.late is not None
    if is_late and intercepting is not None:  # values are fetched only for a command that is going to run
        _await_certainty(control)
        intercepting.fetch(control, given)
    control.setblocking(False)
    loaded, stored = rules.loaded, rules.stored
    oversight: Oversight | None = None
    if stored is not None or settings.mode:
        from exeat.run.gateway_process.oversight import Oversight  # for sandboxes with a name, and those who ask

        oversight = Oversight(settings, stored, asked)
    # That of a sandbox is out of the command's reach, and without a jail there is nothing to be hidden from.
    rotation = settings.audit_rotation._replace(in_reach=settings.folder is None and settings.hides_by_mounts)

    def get_ready() -> None:
        """For the command, and for what ends it."""
        loop.add_reader(control.fileno(), over.set)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, over.set)
        rotates = settings.audit is not None and not rotation.in_reach
        seal_imports((*GATEWAY, *(ROTATION if rotates else ()), *(INTERCEPTION if intercepting is not None else ())))

    def await_command() -> None:
        """All is done by then but for the record, which says that a run has begun."""
        get_ready()
        _await_certainty(control)
        control.setblocking(False)

    waits = is_late and intercepting is None
    gateway = Gateway(
        loaded.policy,
        sandbox=settings.name,
        audit=settings.audit,
        audit_rotation=rotation,
        limits=loaded.limits,
        jail=handed.jail,
        credentials=(handed.user, handed.password) if handed.user else None,
        listeners=sockets["tcp"],
        redirected=bool(sockets["udp"]),
        dns_udp=sockets["udp"],
        dns_tcp=sockets["dns"],
        dropped=sockets["log"],
        interception=intercepting.interception() if intercepting is not None else None,
        ask=oversight.ask if oversight is not None else None,
        ask_timeout_s=settings.ask_s,
        who_asks=_program_finder(handed) if settings.ask and handed.init else None,
        before_record=await_command if waits else None,
    )
    await gateway.start()
    if oversight is not None:
        await oversight.start(gateway, handed.jail)
    if intercepting is not None:
        intercepting.start_renewals(gateway.state.journal)
    if not waits:
        get_ready()
    send(control, Word.READY)
    await over.wait()
    loop.remove_reader(control.fileno())
    if intercepting is not None:
        intercepting.end_renewals()
    if oversight is not None:
        oversight.stop_asking()
    await gateway.settle(_SETTLE_S)
    await gateway.aclose()
    learned = await oversight.close() if oversight is not None else ""
    control.setblocking(True)
    kept = KeptList(settings.name, settings.folder.allowlist_path) if settings.folder is not None else KeptList()
    outcome = tell_outcome(gateway.counters, gateway.policy, kept, handed.jail)
    _leave_streams()
    send(control, Over(outcome.denied, outcome.failed, outcome.facts, outcome.used_ssh, learned))
    return 0


def _leave_streams() -> None:
    """Whoever reads what the command wrote waits until no one has them, and our end takes the kernel a millisecond."""
    with suppress(OSError):  # no more files can be had: they wait for our end
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.close(nothing)


def _program_finder(handed: Serve) -> WhoAsks | None:
    if handed.jail == "vm":
        return None  # it would be QEMU, whichever program of the guest it is
    from exeat.run.gateway_process.who_asks import ProgramFinder  # for those who ask

    return ProgramFinder(handed.init).find


_SSH: Final = 22
_MAX_ENTRIES: Final = 100  # of each kind; the rest is counted


def tell_outcome(counters: Counters, policy: Policy, kept: KeptList, jail: str) -> Outcome:
    """What happened, as far as the gateway has seen it."""
    denied = describe_denied(counters, policy, kept, _own_names())
    failed, allowed = describe_failed(counters), describe_allowed(counters)
    facts = {
        "sandbox": kept.sandbox or None,
        "jail": jail,
        "allowed": [_place(entry) for entry in allowed[:_MAX_ENTRIES]],
        "denied": [_place(entry) | _why(entry) | {"rule": entry.rule or None} for entry in denied[:_MAX_ENTRIES]],
        "failed": [_place(entry) | _why(entry) for entry in failed[:_MAX_ENTRIES]],
        "more": {
            "allowed": _rest(sum(counters.allowed.values()), allowed),
            "denied": _rest(sum(counters.blocked.values()), denied),
            "failed": _rest(sum(counters.failed.values()), failed),
        },
    }
    wanted = [entry for entry in denied if not entry.is_noise][:_MAX_ENTRIES]
    rows = [(entry.where, entry.times, entry.advice) for entry in wanted]
    noise = sum(entry.times for entry in denied if entry.is_noise)
    rest = _rest(sum(counters.blocked.values()) - noise, wanted)
    if rest:
        rows.append(("other hosts", rest, "--audit FILE records all"))
    return Outcome(
        tuple(rows),
        tuple((entry.where, entry.times, entry.advice) for entry in failed[:_MAX_ENTRIES]),
        json.dumps(facts)[1:-1],
        used_ssh=any(port == _SSH for _, port in counters.allowed),
    )


def _place(entry: Entry) -> dict[str, Any]:
    return {"host": entry.host or None, "port": entry.port or None, "count": entry.times}


def _why(entry: Entry) -> dict[str, Any]:
    return {"reason": entry.reason, "advice": entry.advice or None}


def _rest(total: int, entries: Sequence[Entry]) -> int:
    return total - sum(entry.times for entry in entries[:_MAX_ENTRIES])


def _own_names() -> frozenset[str]:
    """By which programs look up the machine that they are on."""
    full = socket.gethostname().lower().rstrip(".")
    short = full.partition(".")[0]
    return frozenset({full, short, f"{short}.local", f"{short}.localdomain"} - {"", ".local", ".localdomain"})
