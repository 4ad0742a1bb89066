"""Inside the gateway's process: read the rules, serve the sockets until the run is over, tell what was blocked."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, NamedTuple

from exeat.errors import ConfigError
from exeat.gateway.gates.resolve import load_system_resolver
from exeat.gateway.gateway import Gateway
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.gateway.record.counters import KeptList
from exeat.jail.messages import receive
from exeat.policy import LOCALHOST, LOOPBACK, Pattern, Policy, Rule, Scope
from exeat.run.gateway_process.facts import tell_outcome
from exeat.run.gateway_process.preparations import Preparations, send_preparations
from exeat.run.gateway_process.process import BLOCKED, LEARNED, READY, RULES
from exeat.run.outcome import write_outcome
from exeat.run.sealing import seal_imports
from exeat.run.settings import RunSettings
from exeat.sources import Loaded
from exeat.trust.unnamed_file import file_in_memory

if TYPE_CHECKING:
    from exeat.gateway.gates.questions import WhoAsks
    from exeat.run.gateway_process.intercepting import Intercepting
    from exeat.run.gateway_process.oversight import Oversight
    from exeat.run.gateway_process.stored import StoredRules

# Loaded by the gateway when it first needs them; by then nothing is to be loaded any more.
_NEEDED_LATER = (
    "aiohappyeyeballs", "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.punycode",
    "encodings.utf_8", "idna", "idna.uts46data", "json", "hashlib", "traceback",
)  # fmt: skip
_NEEDED_TO_ROTATE = ("pathlib", "exeat.audit.rotate")
_MAX_HANDED = 16
_SETTLE_S = 0.5


class _Handed(NamedTuple):
    """What the run hands over once the jail stands."""

    jail: str
    credentials: tuple[str, str] | None
    init: int  # process 1 of the jail; 0: there is none
    sockets: dict[str, list[socket.socket]]


def serve_run(settings: RunSettings, control: socket.socket, asked: socket.socket | None = None) -> None:
    """Until the other side closes its end. Raises ConfigError for rules that cannot be used.

    `asked`: somebody at the other end answers what no rule does.
    """
    if settings.may_intercept:
        _keep_to_itself()  # from here on there may be values in memory
    loaded = settings.load()
    stored: StoredRules | None = None
    if settings.folder is not None:
        from exeat.run.gateway_process.stored import StoredRules  # noqa: PLC0415 - for sandboxes with a name

        stored = StoredRules(settings.folder, loaded.policy)
        loaded = loaded._replace(policy=stored.policy)
    control.send(RULES + "\0".join(_loopback_places(loaded.policy)).encode())
    intercepting = _prepare(settings, loaded, control) if settings.may_intercept else None
    handed = _receive(control)
    if handed is None:
        return  # there will be no run
    raise_descriptor_limit()
    run_in_loop(_serve(settings, loaded, intercepting, handed, control, stored, asked))


def _prepare(settings: RunSettings, loaded: Loaded, control: socket.socket) -> Intercepting | None:
    """Fetch secrets and make certificates, if there is anything to look into, and tell the run what follows."""
    if not _is_needed(loaded):
        _refuse_without_use(settings.upstream_ca)
        send_preparations(control, Preparations(said=loaded.warnings, files=loaded.files))
        return None
    from exeat.run.gateway_process.intercepting import Intercepting  # noqa: PLC0415 - takes 100 ms to load

    intercepting = Intercepting(loaded, settings.upstream_ca, settings.environ, settings.folder)
    send_preparations(control, intercepting.preparations())
    return intercepting


def _is_needed(loaded: Loaded) -> bool:
    """Is there anything to look into?"""
    if loaded.intercept == "none":
        return False
    return bool(loaded.secrets) or loaded.intercept == "all" or any(rule.conditional for rule in loaded.policy.rules)


def _refuse_without_use(upstream_ca: Sequence[str]) -> None:
    """An option that would have no effect is a mistake that somebody should hear of."""
    if upstream_ca:
        raise ConfigError(
            "nothing is intercepted, so no server's certificate is checked here",
            where=f"--upstream-ca {upstream_ca[0]}",
            expected="secrets, rules with methods or paths, or --intercept all",
        )


def _keep_to_itself() -> None:
    """No core dump, and no other process that looks into this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        from exeat.jail.limits.privileges import hide_memory  # noqa: PLC0415 - Linux only

        hide_memory()


def _receive(control: socket.socket) -> _Handed | None:
    data, received = receive(control, 65_536, _MAX_HANDED)
    if not data:
        return None
    jail, user, password, init, kinds = data.decode().split("\0")
    sockets: dict[str, list[socket.socket]] = {"tcp": [], "udp": [], "dns": [], "log": []}
    for kind, descriptor in zip(kinds.split(","), received, strict=True):
        sockets[kind].append(socket.socket(fileno=descriptor))
    return _Handed(jail, (user, password) if user else None, int(init), sockets)


def _loopback_places(policy: Policy) -> list[str]:
    """Loopback addresses that the rules list: there the user means the host's servers, not the jail's own."""
    return [
        field
        for rule in policy.rules
        if not rule.deny
        for address in _loopback_addresses(rule)
        for low, high in rule.ports
        for field in (address.packed.hex(), str(low), str(high))
    ]


def _loopback_addresses(rule: Rule) -> tuple[IPv4Address | IPv6Address, ...]:
    if rule.pattern == Pattern(Scope.EXACT, LOCALHOST.text):
        return LOOPBACK
    network = rule.pattern.network
    is_one = network is not None and network.is_loopback and network.num_addresses == 1
    return (network.network_address,) if network is not None and is_one else ()


async def _serve(
    settings: RunSettings,
    loaded: Loaded,
    intercepting: Intercepting | None,
    handed: _Handed,
    control: socket.socket,
    stored: StoredRules | None,
    asked: socket.socket | None,
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    control.setblocking(False)
    sockets = handed.sockets
    oversight: Oversight | None = None
    if stored is not None or settings.mode:
        from exeat.run.gateway_process.oversight import Oversight  # noqa: PLC0415 - for sandboxes with a name, and those who ask

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
        credentials=handed.credentials,
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
    renewals = _begin_interception(gateway, intercepting) if intercepting is not None else []
    seal_imports(_NEEDED_LATER if rotation.in_reach or settings.audit is None else (*_NEEDED_LATER, *_NEEDED_TO_ROTATE))
    control.send(READY)
    await over.wait()
    loop.remove_reader(control.fileno())
    if intercepting is not None:
        intercepting.end_renewals(renewals)
    if oversight is not None:
        oversight.stop_asking()
    await gateway.settle(_SETTLE_S)
    await gateway.aclose()
    learned = await oversight.close() if oversight is not None else ""
    control.setblocking(True)
    kept = KeptList(settings.name, settings.folder.allowlist_path) if settings.folder is not None else KeptList()
    outcome = write_outcome(tell_outcome(gateway.counters, gateway.policy, kept, handed.jail))
    socket.send_fds(control, [BLOCKED], [file_in_memory(outcome.encode())])
    if settings.learn:
        socket.send_fds(control, [LEARNED], [file_in_memory(learned.encode())])
    return 0


def _program_finder(init: int) -> WhoAsks:
    from exeat.run.gateway_process.who_asks import ProgramFinder  # noqa: PLC0415 - for those who ask

    return ProgramFinder(init).find


def _begin_interception(gateway: Gateway, intercepting: Intercepting) -> list[asyncio.Task[None]]:
    """Load what is loaded late otherwise, and renew the secrets that are to be renewed."""
    from importlib import import_module  # noqa: PLC0415

    from exeat.run.gateway_process.intercepting import NEEDED_LATER  # noqa: PLC0415
    from exeat.run.gateway_process.renewal import start_renewals  # noqa: PLC0415

    for name in NEEDED_LATER:
        import_module(name)
    return start_renewals(intercepting.secrets, intercepting.environ, gateway.state.journal)
