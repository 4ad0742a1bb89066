"""Inside the gateway's process: serve the jail's sockets until the run is over, then report what was blocked."""

from __future__ import annotations

import asyncio
import json
import signal
import socket

from exeat.gateway.blocked import describe_blocked
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.jail.network import Sockets
from exeat.policy import Policy
from exeat.run.gatekeeper import READY
from exeat.serve.main import run_in_loop
from exeat.serve.worker import raise_descriptor_limit


def serve_jail(
    policy: Policy,
    limits: Limits,
    sockets: Sockets,
    control: socket.socket,
    *,
    jail: str,
    audit: str | None,
    credentials: tuple[str, str] | None,
) -> None:
    """Until the other side closes its end."""
    raise_descriptor_limit()
    run_in_loop(_serve(policy, limits, sockets, control, jail=jail, audit=audit, credentials=credentials))


async def _serve(
    policy: Policy,
    limits: Limits,
    sockets: Sockets,
    control: socket.socket,
    *,
    jail: str,
    audit: str | None,
    credentials: tuple[str, str] | None,
) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    control.setblocking(False)
    gateway = Gateway(
        policy,
        audit=audit,
        limits=limits,
        jail=jail,
        credentials=credentials,
        listeners=sockets.tcp,
        redirected=bool(sockets.dns_udp),
        dns_udp=sockets.dns_udp,
        dns_tcp=sockets.dns_tcp,
        dropped=sockets.dropped,
    )
    await gateway.start()
    loop.add_reader(control.fileno(), over.set)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    control.send(READY)
    await over.wait()
    loop.remove_reader(control.fileno())
    await gateway.aclose()
    control.setblocking(True)
    control.sendall(json.dumps(describe_blocked(gateway.counters)).encode())
    return 0
