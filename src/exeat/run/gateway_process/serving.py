"""In the gateway process: serve the sockets until the run is over, and tell what was blocked."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

from exeat.gateway.gates.resolve import load_system_resolver
from exeat.gateway.gateway import Gateway
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.gateway.record.counters import KeptList
from exeat.jail.messages import Over, Serve, Word, receive, send
from exeat.run.gateway_process.facts import tell_outcome
from exeat.run.gateway_process.rules import ReadRules
from exeat.run.sealing import GATEWAY, INTERCEPTION, ROTATION, seal_imports
from exeat.run.settings import RunSettings

if TYPE_CHECKING:
    from exeat.gateway.gates.questions import WhoAsks
    from exeat.run.gateway_process.intercepting import Intercepting
    from exeat.run.gateway_process.oversight import Oversight

_MAX_HANDED = 16
_SETTLE_S = 0.5


def serve_run(
    settings: RunSettings, rules: ReadRules, control: socket.socket, asked: socket.socket | None = None
) -> None:
    """Until the other side closes its end. Raises ConfigError for secrets without a value, for example.

    `asked`: somebody at the other end answers what no rule does.
    """
    intercepting: Intercepting | None = None
    if rules.looks_inside:
        from exeat.run.gateway_process.intercepting import Intercepting  # takes 100 ms to load

        intercepting = Intercepting(rules.loaded, settings.upstream_ca, settings.environ, settings.folder)
        intercepting.tell(control)
    handed = _receive(control)
    if handed is None:
        return  # there will be no run
    raise_descriptor_limit()
    run_in_loop(_serve(settings, rules, intercepting, *handed, control, asked))


def _receive(control: socket.socket) -> tuple[Serve, dict[str, list[socket.socket]]] | None:
    """What the runner hands over once the jail stands."""
    message, received = receive(control, _MAX_HANDED)
    if not isinstance(message, Serve):
        return None
    sockets: dict[str, list[socket.socket]] = {"tcp": [], "udp": [], "dns": [], "log": []}
    for kind, descriptor in zip(message.kinds, received, strict=True):
        sockets[kind].append(socket.socket(fileno=descriptor))
    return message, sockets


async def _serve(
    settings: RunSettings,
    rules: ReadRules,
    intercepting: Intercepting | None,
    handed: Serve,
    sockets: dict[str, list[socket.socket]],
    control: socket.socket,
    asked: socket.socket | None,
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    control.setblocking(False)
    loaded, stored = rules.loaded, rules.stored
    oversight: Oversight | None = None
    if stored is not None or settings.mode:
        from exeat.run.gateway_process.oversight import Oversight  # for sandboxes with a name, and those who ask

        oversight = Oversight(settings, stored, asked)
    # That of a sandbox is out of the command's reach, and without a jail there is nothing to be hidden from.
    rotation = settings.audit_rotation._replace(in_reach=settings.folder is None and settings.hides_by_mounts)
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
        who_asks=_program_finder(handed.init) if settings.ask and handed.init else None,
    )
    await gateway.start()
    if oversight is not None:
        await oversight.start(gateway, handed.jail)
    loop.add_reader(control.fileno(), over.set)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    load_system_resolver()
    if intercepting is not None:
        intercepting.start_renewals(gateway.state.journal)
    rotates = settings.audit is not None and not rotation.in_reach
    seal_imports((*GATEWAY, *(ROTATION if rotates else ()), *(INTERCEPTION if intercepting is not None else ())))
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
    send(control, Over(outcome.denied, outcome.failed, outcome.facts, outcome.used_ssh, learned))
    return 0


def _program_finder(init: int) -> WhoAsks:
    from exeat.run.gateway_process.who_asks import ProgramFinder  # for those who ask

    return ProgramFinder(init).find
