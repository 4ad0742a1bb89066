"""Inside the gateway's process: read the rules, serve the sockets until the run is over, tell what was blocked."""

from __future__ import annotations

import asyncio
import signal
import socket

from exeat.gateway.blocked import describe_blocked
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.gateway.resolve import load_system_resolver
from exeat.policy import Policy
from exeat.run.gatekeeper import BLOCKED, READY, RULES
from exeat.run.sealing import seal_imports
from exeat.run.settings import RunSettings

# Loaded by the gateway when it first needs them; by then nothing is to be loaded any more.
_NEEDED_LATER = (
    "aiohappyeyeballs", "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.punycode",
    "encodings.utf_8", "idna", "json", "hashlib", "traceback",
)  # fmt: skip
_MAX_HANDED = 16
_MAX_REPORTED = 100
_SETTLE_S = 0.5


def serve_run(settings: RunSettings, control: socket.socket) -> None:
    """Until the other side closes its end. Raises ConfigError for rules that cannot be used."""
    policy, limits = settings.load()
    control.send(RULES + "\0".join(_loopback_places(policy)).encode())
    data, received, _, _ = socket.recv_fds(control, 65_536, _MAX_HANDED)
    if not data:
        return  # there will be no run
    jail, user, password, kinds = data.decode().split("\0")
    sockets: dict[str, list[socket.socket]] = {"tcp": [], "udp": [], "dns": [], "log": []}
    for kind, descriptor in zip(kinds.split(","), received, strict=True):
        sockets[kind].append(socket.socket(fileno=descriptor))
    raise_descriptor_limit()
    credentials = (user, password) if user else None
    run_in_loop(_serve(policy, limits, sockets, control, settings.audit, jail, credentials))


def _loopback_places(policy: Policy) -> list[str]:
    """Loopback addresses that the rules list: there the user means the host's servers, not the jail's own."""
    return [
        field
        for rule in policy.rules
        if not rule.deny and rule.pattern.network is not None
        if rule.pattern.network.is_loopback and rule.pattern.network.num_addresses == 1
        for low, high in rule.ports
        for field in (rule.pattern.network.network_address.packed.hex(), str(low), str(high))
    ]


async def _serve(
    policy: Policy,
    limits: Limits,
    sockets: dict[str, list[socket.socket]],
    control: socket.socket,
    audit: str | None,
    jail: str,
    credentials: tuple[str, str] | None,
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    control.setblocking(False)
    gateway = Gateway(
        policy,
        audit=audit,
        audit_stays=True,
        limits=limits,
        jail=jail,
        credentials=credentials,
        listeners=sockets["tcp"],
        redirected=bool(sockets["udp"]),
        dns_udp=sockets["udp"],
        dns_tcp=sockets["dns"],
        dropped=sockets["log"],
    )
    await gateway.start()
    loop.add_reader(control.fileno(), over.set)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    load_system_resolver()
    seal_imports(_NEEDED_LATER)
    control.send(READY)
    await over.wait()
    loop.remove_reader(control.fileno())
    await gateway.settle(_SETTLE_S)
    await gateway.aclose()
    control.setblocking(True)
    fields = [
        str(field)
        for entry in describe_blocked(gateway.counters)[:_MAX_REPORTED]
        for field in (entry["where"], entry["count"], entry["advice"])
    ]
    control.send(BLOCKED + "\0".join(fields).encode())
    return 0
