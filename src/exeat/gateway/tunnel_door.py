"""What goes on inside a tunnel that was allowed: its first bytes decide, then it is blind.

TLS must ask for the name that the tunnel was opened for, or the tunnel could be used to reach any other
host behind the same address (domain fronting). On port 443 nothing but TLS passes, on port 80 nothing but
HTTP or TLS; a port that a rule names explicitly may carry any protocol, the server speaking first included.
"""

from __future__ import annotations

from typing import Final

from exeat.errors import HostError, ProtocolError
from exeat.gateway.admission import deny_inside
from exeat.gateway.channel import Channel
from exeat.gateway.relay import Tunnel
from exeat.gateway.session import Session
from exeat.gateway.state import Ask, Place
from exeat.policy import Address, canonical_host
from exeat.wire.http1 import sniff_request
from exeat.wire.tls import HANDSHAKE, parse_client_hello

# A fatal alert, access_denied: TLS clients report it instead of an unexplained end of file.
_TLS_ACCESS_DENIED: Final = b"\x15\x03\x03\x00\x02\x02\x31"
_RELAY: Final = "relay"
_HTTP: Final = "http"


async def serve_tunnel(session: Session, ask: Ask, upstream: Channel, status: int) -> Place | None:
    """Relay a tunnel to its end. If plain HTTP is spoken inside, gives the place back, and the upstream to the pool."""
    state, client = session.state, session.client
    record, place = ask.record, ask.place
    session.upstream = upstream
    tunnel = Tunnel(client, upstream, state.budgets.of(place.decision.rule))
    session.begin(ask, tunnel.stop)
    web = place.port in (80, 443)
    if web:
        session.watch(state.limits.head_s, lambda: tunnel.stop("timeout"))
    else:
        session.watch_idle(tunnel.stop)
        tunnel.open_down()
    try:
        verdict = await _judge_first_bytes(client, upstream, place)
    except ProtocolError as error:
        verdict, record.note = "malformed", error.public
    if verdict == _HTTP:
        tunnel.detach()
        session.upstream = None
        session.finish(record, status, upstream.sent, upstream.received, "")
        if ask.policy is state.policy:
            state.pool.give(ask.pool_key, upstream, record.address)
        else:
            upstream.close()
        return place
    if verdict == _RELAY:
        session.watch_idle(tunnel.stop)
        if web:
            tunnel.open_down()
        tunnel.open_up()
    else:
        deny_inside(state, record, verdict)
        tunnel.refuse(verdict, _TLS_ACCESS_DENIED if client.buffer[:1] == b"\x16" else b"")
    await tunnel.done
    session.finish(record, status, upstream.sent, upstream.received, tunnel.note)
    return None


async def _judge_first_bytes(client: Channel, upstream: Channel, place: Place) -> str:
    """`relay`, `http`, or the reason to refuse. Waits for as much as it needs to tell; nothing has been sent on."""
    while True:
        data = client.buffer
        if data and data[0] == HANDSHAKE:
            hello = parse_client_hello(data)
            if hello is not None:
                return _RELAY if _agrees(hello.server_name, place) else "sni-mismatch"
        elif data:
            if place.port == 443:
                return "not-tls"
            # A server that has spoken first is not an HTTP server.
            spoken = upstream.received > 0
            http = False if spoken else sniff_request(data)
            if http is not None:
                return _HTTP if http else "not-http" if place.port == 80 else _RELAY
        if not await client.more():
            # Nothing, or a fragment of something, and then the end: there is no more to judge.
            return "cut-off" if data else _RELAY


def _agrees(server_name: str | None, place: Place) -> bool:
    """Does the TLS name agree with the place? An address has none to agree with, so it must be absent."""
    rule = place.decision.rule
    if rule is not None and rule.allow_sni_mismatch:
        return True
    if server_name is None:
        return isinstance(place.host, Address)
    try:
        return canonical_host(server_name) == place.host
    except HostError:
        return False
