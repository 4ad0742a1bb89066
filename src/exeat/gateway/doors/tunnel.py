"""What goes on inside a tunnel that was allowed: its first bytes decide, then it is blind.

TLS must ask for the name that the tunnel was opened for, or the tunnel could be used to reach any other
host behind the same address (domain fronting). On port 443 nothing but TLS passes, on port 80 nothing but
HTTP or TLS; a port that a rule names explicitly may carry any protocol, the server speaking first included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from exeat.audit import Record
from exeat.errors import HostError, ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.relay import Tunnel
from exeat.gateway.gates.admission import deny_inside
from exeat.gateway.gates.session import Session
from exeat.gateway.refusal import WRONG_HOST
from exeat.gateway.state import Access, Place
from exeat.policy import LOCALHOST, Address, canonical_host, is_same_host
from exeat.wire.http1 import sniff_request
from exeat.wire.tls import HANDSHAKE, asks_for_second_hello, find_second_hello, parse_client_hello

WEB_PORTS: Final = (80, 443)  # whoever connects to one of these speaks first
# A fatal alert, access_denied: TLS clients report it instead of an unexplained end of file.
TLS_ACCESS_DENIED: Final = b"\x15\x03\x03\x00\x02\x02\x31"
RELAY: Final = "relay"
HTTP: Final = "http"
INTERCEPT: Final = "intercept"


class Speech(Enum):
    """What a client's first bytes begin."""

    NOTHING = 0  # it has finished without a byte
    FRAGMENT = 1  # it has finished before one could tell
    TLS = 2
    BROKEN_TLS = 3
    HTTP = 4  # version 1, well formed or not
    OTHER = 5


@dataclass(frozen=True, slots=True)
class First:
    """A client's first bytes, understood as far as they are judged. They stay in its buffer."""

    speech: Speech
    server_name: str | None = None  # of TLS, as sent
    fault: str = ""  # of broken TLS, for the record
    size: int = 0  # of a TLS hello


SILENT: Final = First(Speech.NOTHING)


@dataclass(frozen=True, slots=True)
class Inner:
    """Requests that come through a tunnel to `place`, to be served each on its own: plain HTTP, or HTTP inside TLS.

    `record` is that of the tunnel, still to be ended, if its TLS is looked into.
    """

    place: Place
    door: str
    record: Record | None = None


async def read_first(client: Channel, upstream: Channel | None = None, *, tls_only: bool = False) -> First:
    """Wait for as much as it takes to tell what the client speaks.

    A server that has spoken first is not an HTTP server. `tls_only`: nothing else will pass, so do not wait
    for more of it.
    """
    while True:
        data = client.buffer
        if data and data[0] == HANDSHAKE:
            try:
                hello = parse_client_hello(data)
            except ProtocolError as error:
                return First(Speech.BROKEN_TLS, fault=error.public)
            if hello is not None:
                return First(Speech.TLS, hello.server_name, size=hello.size)
        elif data:
            spoken = tls_only or (upstream is not None and upstream.received > 0)
            http = False if spoken else sniff_request(data)
            if http is not None:
                return First(Speech.HTTP if http else Speech.OTHER)
        if not await client.more():
            return First(Speech.FRAGMENT) if data else SILENT


def judge_first(first: First, place: Place) -> str:
    """RELAY, HTTP, or the reason to refuse a tunnel to this place that begins so."""
    match first.speech:
        case Speech.NOTHING:
            return RELAY
        case Speech.FRAGMENT:
            return "cut-off"
        case Speech.BROKEN_TLS:
            return "malformed"
        case Speech.TLS:
            if not _agrees(first.server_name, place):
                return "sni-mismatch"
            return INTERCEPT if place.looks_into_tls else RELAY
        case Speech.HTTP | Speech.OTHER if place.is_proxy:
            return RELAY
        case Speech.HTTP | Speech.OTHER if place.port == 443:
            return "not-tls"
        case Speech.HTTP:
            return HTTP
        case Speech.OTHER if place.is_intercepted:
            return "not-tls"
        case Speech.OTHER:
            return "not-http" if place.port == 80 else RELAY


async def serve_unopened(session: Session, access: Access, door: str) -> Inner | None:
    """A tunnel to an intercepted place, on record already. Nothing is dialled for it: its first bytes decide."""
    state, client, record = session.state, session.client, access.record
    session.watch(state.limits.head_s, client.close)
    first = await read_first(client, tls_only=access.place.port == 443)
    place = state.find(access.place.where, 0)  # the policy may have changed meanwhile
    verdict = judge_first(first, place)
    if verdict == INTERCEPT and place.is_intercepted:
        return Inner(place, door, record)
    note = ""
    if verdict == HTTP and place.is_intercepted:
        session.finish(record, record.status, 0, 0, "")
        return Inner(place, door)
    if first.speech is not Speech.NOTHING:
        record.note = first.fault
        note = "revoked" if verdict in (RELAY, HTTP, INTERCEPT) else verdict
        deny_inside(state, record, note)
        if client.buffer[:1] == b"\x16":
            client.write(TLS_ACCESS_DENIED)
    session.finish(record, record.status, 0, 0, note)
    await session.linger()
    return None


async def serve_tunnel(session: Session, access: Access, upstream: Channel, status: int, door: str) -> Inner | None:
    """Relay a tunnel to its end. If requests are to be served inside, says so, and the upstream goes to the pool."""
    state, client = session.state, session.client
    record, place = access.record, access.place
    session.upstream = upstream
    tunnel = Tunnel(client, upstream, state.budgets.of(place.decision.rule))
    session.begin(access, tunnel.stop)
    web = place.port in WEB_PORTS
    if web:
        session.watch(state.limits.head_s, lambda: tunnel.stop("timeout"))
    else:
        session.watch_idle(tunnel.stop)
        tunnel.open_down()
    first = await read_first(client, upstream, tls_only=place.port == 443)
    verdict = judge_first(first, place)
    record.note = first.fault
    if verdict in (HTTP, INTERCEPT):
        tunnel.detach()
        session.upstream = None
        if verdict == INTERCEPT:
            upstream.abort()  # what goes out will be TLS of our own
            record.status = status
            return Inner(place, door, record)
        session.finish(record, status, upstream.sent, upstream.received, "")
        if access.policy is state.policy:
            state.pool.give(access.pool_key, upstream, access.route)
        else:
            upstream.close()
        return Inner(place, door)
    if verdict == RELAY:
        _watch_for_secrets(session, tunnel, first)
        session.watch_idle(tunnel.stop)
        if web:
            tunnel.open_down()
        await _open_up(session, access, tunnel, first)
    else:
        deny_inside(state, record, verdict)
        tunnel.refuse(verdict, TLS_ACCESS_DENIED if client.buffer[:1] == b"\x16" else b"")
    await tunnel.done
    _finish(session, access, tunnel, upstream, status)
    return None


async def relay_judged(session: Session, access: Access, upstream: Channel, status: int, first: First) -> None:
    """Relay a tunnel whose first bytes were judged before anything was dialled."""
    session.upstream = upstream
    tunnel = Tunnel(session.client, upstream, session.state.budgets.of(access.decision.rule))
    _watch_for_secrets(session, tunnel, first)
    session.begin(access, tunnel.stop)
    session.watch_idle(tunnel.stop)
    tunnel.open_down()
    await _open_up(session, access, tunnel, first)
    await tunnel.done
    _finish(session, access, tunnel, upstream, status)


class _ServerHello:
    """What the server says to a hello: does it ask for a second one?"""

    __slots__ = ("_client", "_heard", "asks_again")

    def __init__(self, client: Channel) -> None:
        self._client = client
        self._heard = b""
        self.asks_again: bool | None = None  # not known yet

    def feed(self, data: bytes) -> bool:
        self._heard += data
        self.asks_again = asks_for_second_hello(self._heard)
        if self.asks_again is None:
            return True
        self._client.wake()
        return False

    def end(self) -> None:
        self.asks_again = False
        self._client.wake()


async def _open_up(session: Session, access: Access, tunnel: Tunnel, first: First) -> None:
    """Let the client's bytes out. After a TLS hello that waits for the server's, and a second hello is judged too."""
    if first.speech is Speech.TLS:
        client = session.client
        answer = _ServerHello(client)
        tunnel.look_down(answer)
        tunnel.send_up(first.size)
        # What the client sends meanwhile (early data) stays in its buffer. A server waits for none of it.
        while answer.asks_again is None and not client.closed and (client.buffer or not client.eof):
            await client.stirred()
        if client.closed:
            client.buffer = b""
        elif answer.asks_again and (refused := await _judge_second(client, access, tunnel)):
            deny_inside(session.state, access.record, refused)
            tunnel.refuse(refused, TLS_ACCESS_DENIED)
            return
    tunnel.open_up()


async def _judge_second(client: Channel, access: Access, tunnel: Tunnel) -> str:
    """The client has been asked for a second hello: the reason to refuse it, or nothing."""
    while True:
        try:
            size, hello = find_second_hello(client.buffer)
        except ProtocolError as error:
            access.record.note = error.public
            return "malformed"
        tunnel.send_up(size)
        if hello is not None:
            return "" if _agrees(hello.server_name, access.place) else "sni-mismatch"
        if not await client.more():
            return "cut-off" if client.buffer and not client.closed else ""


def _watch_for_secrets(session: Session, tunnel: Tunnel, first: First) -> None:
    """In clear text a placeholder can be seen, and no secret may go out in clear text, so neither may that."""
    interception = session.state.interception
    if interception is not None and first.speech is not Speech.TLS:
        tunnel.watch_up(interception.vault.placeholder_detector(), WRONG_HOST)


def _finish(session: Session, access: Access, tunnel: Tunnel, upstream: Channel, status: int) -> None:
    if tunnel.seen:
        access.record.secrets = tunnel.seen
        deny_inside(session.state, access.record, WRONG_HOST)
    session.finish(access.record, status, upstream.sent, upstream.received, tunnel.note)


def _agrees(server_name: str | None, place: Place) -> bool:
    """Does the TLS name agree with the place? An address has none to agree with, so it must be absent, but on loopback
    it may be `localhost`.
    """
    rule = place.decision.rule
    if rule is not None and rule.allow_sni_mismatch:
        return True
    if server_name is None:
        return isinstance(place.host, Address) or place.host == LOCALHOST
    try:
        named = canonical_host(server_name)
        return named == place.host or (named == LOCALHOST and is_same_host(named, place.host))
    except HostError:
        return False
