"""An allowed tunnel: its first bytes decide, then it is blind.

TLS must ask for the name that the tunnel was opened for, or the tunnel could be used to reach any other
host behind the same address (domain fronting). On port 443 nothing but TLS passes, on port 80 nothing but
HTTP or TLS; a port that a rule names explicitly may carry any protocol, the server speaking first included.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from exeat.errors import HostError, ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.relay import Tunnel
from exeat.gateway.gates.judging import keep_upstream, place_now
from exeat.gateway.gates.session import Session
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.state import Access, Place
from exeat.policy import LOCALHOST, Address, canonical_host, is_same_host
from exeat.reasons import Ending, Reason
from exeat.values import frozen
from exeat.wire.http1 import sniff_request
from exeat.wire.tls import HANDSHAKE, asks_for_second_hello, find_second_hello, parse_client_hello

WEB_PORTS: Final = (80, 443)  # whoever connects to one of these speaks first
# A fatal alert, access_denied: TLS clients report it instead of an unexplained end of file.
TLS_ACCESS_DENIED: Final = b"\x15\x03\x03\x00\x02\x02\x31"


class Action(Enum):
    """What to do with a tunnel whose first bytes may pass."""

    RELAY = 0
    SERVE_HTTP = 1  # each request on its own
    INTERCEPT = 2  # the same, inside TLS


class Speech(Enum):
    """What a client's first bytes begin."""

    NOTHING = 0  # it has finished without a byte
    FRAGMENT = 1  # it has finished before one could tell
    TLS = 2
    BROKEN_TLS = 3
    HTTP = 4  # version 1, well formed or not
    OTHER = 5


@frozen
class First:
    """A client's first bytes, understood as far as they are judged. They stay in its buffer."""

    speech: Speech
    server_name: str | None = None  # of TLS, as sent
    fault: str = ""  # of broken TLS, for the record
    size: int = 0  # of a TLS hello


SILENT: Final = First(Speech.NOTHING)


@frozen
class Inner:
    """Requests that come through a tunnel to `place`, to be served each on its own: plain HTTP, or HTTP inside TLS.

    `record` is that of the tunnel, still to be ended, if its TLS is looked into.
    """

    place: Place
    door: str
    record: AccessRecord | None = None


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


def judge_first(first: First, place: Place) -> Action | Reason:
    """What to do with a tunnel to this place that begins so, or the reason to refuse it."""
    match first.speech:
        case Speech.TLS:
            if not _agrees(first.server_name, place):
                return Reason.SNI_MISMATCH
            return Action.INTERCEPT if place.looks_into_tls else Action.RELAY
        case Speech.NOTHING:
            return Action.RELAY
        case Speech.FRAGMENT:
            return Reason.CUT_OFF
        case Speech.BROKEN_TLS:
            return Reason.MALFORMED
        case Speech.HTTP | Speech.OTHER if place.is_proxy:
            return Action.RELAY
        case Speech.HTTP | Speech.OTHER if place.port == 443:
            return Reason.NOT_TLS
        case Speech.HTTP:
            return Action.SERVE_HTTP
        case Speech.OTHER if place.is_intercepted:
            return Reason.NOT_TLS
        case Speech.OTHER:
            return Reason.NOT_HTTP if place.port == 80 else Action.RELAY


async def serve_unopened(session: Session, access: Access, door: str) -> Inner | None:
    """A tunnel to an intercepted place, on record already. Nothing is dialled for it: its first bytes decide."""
    state, client, record = session.state, session.client, access.record
    session.watch(state.limits.head_s, client.close)
    first = await read_first(client, tls_only=access.place.port == 443)
    place = place_now(state, access.place)
    verdict = judge_first(first, place)
    if verdict is Action.INTERCEPT and place.is_intercepted:
        return Inner(place, door, record)
    if verdict is Action.SERVE_HTTP and place.is_intercepted:
        session.finish(record)
        return Inner(place, door)
    if first.speech is Speech.NOTHING:
        session.finish(record)
    else:
        reason = verdict if isinstance(verdict, Reason) else Reason.REVOKED
        record.denied_inside(reason, note=first.fault)
        if words := _last_words(client):
            client.write(words)
        session.finish(record, reason)
    await session.linger()
    return None


async def serve_tunnel(session: Session, access: Access, upstream: Channel, door: str) -> Inner | None:
    """Relay a tunnel to its end. If requests are to be served inside, says so, and the upstream goes to the pool."""
    state, client = session.state, session.client
    record, place = access.record, access.place
    tunnel = Tunnel(client, upstream, state.budgets.of(place.decision.rule))
    session.begin(access, upstream, tunnel.stop)
    web = place.port in WEB_PORTS
    if web:
        session.watch(state.limits.head_s, lambda: tunnel.stop(Ending.TIMEOUT))
    else:
        session.watch_idle(tunnel.stop)
        tunnel.open_down()
    first = await read_first(client, upstream, tls_only=place.port == 443)
    verdict = judge_first(first, place)
    match verdict:
        case Action.RELAY:
            _watch_for_secrets(session, tunnel, first)
            if web:
                session.watch_idle(tunnel.stop)
                tunnel.open_down()
            await _open_up(session, access, tunnel, first)
        case Reason():
            record.denied_inside(verdict, note=first.fault)
            tunnel.refuse(verdict, _last_words(client))
        case Action.INTERCEPT | Action.SERVE_HTTP:
            tunnel.detach()
            session.let_go()
            if verdict is Action.INTERCEPT:
                upstream.abort()  # what goes out will be TLS of our own
                return Inner(place, door, record)
            session.finish(record, "", upstream.sent, upstream.received)
            keep_upstream(state, access, upstream)
            return Inner(place, door)
    await tunnel.done
    _finish(session, access, tunnel, upstream)
    return None


async def relay_judged(session: Session, access: Access, upstream: Channel, first: First) -> None:
    """Relay a tunnel whose first bytes were judged before anything was dialled."""
    tunnel = Tunnel(session.client, upstream, session.state.budgets.of(access.decision.rule))
    _watch_for_secrets(session, tunnel, first)
    session.begin(access, upstream, tunnel.stop)
    session.watch_idle(tunnel.stop)
    tunnel.open_down()
    await _open_up(session, access, tunnel, first)
    await tunnel.done
    _finish(session, access, tunnel, upstream)


class _ServerHello:
    """What the server says to a hello: does it ask for a second one?"""

    __slots__ = ("_client", "_heard", "_tunnel", "asks_again")

    def __init__(self, client: Channel, tunnel: Tunnel) -> None:
        self._client = client
        self._tunnel = tunnel
        self._heard = b""
        self.asks_again: bool | None = None  # not known yet

    def feed(self, data: bytes) -> bool:
        self._heard = self._heard + data if self._heard else data
        self.asks_again = asks_for_second_hello(self._heard)
        if self.asks_again is None:
            return True
        if self.asks_again:
            self._client.wake()
        else:
            self._tunnel.open_up()  # here, without a turn of the task, which has nothing to judge
        return False

    def end(self) -> None:
        self.asks_again = False
        self._client.wake()


async def _open_up(session: Session, access: Access, tunnel: Tunnel, first: First) -> None:
    """Let the client's bytes out. After a TLS hello that waits for the server's, and a second hello is judged too."""
    if first.speech is Speech.TLS:
        client = session.client
        answer = _ServerHello(client, tunnel)
        tunnel.look_down(answer)
        tunnel.send_up(first.size)
        # What the client sends meanwhile (early data) stays in its buffer. A server waits for none of it.
        while answer.asks_again is None and not client.closed and (client.buffer or not client.eof):
            await client.stirred()
        if tunnel.has_begun:
            return
        if client.closed:
            client.take()
        elif answer.asks_again and (judged := await _judge_second(client, access, tunnel)):
            refused, fault = judged
            access.record.denied_inside(refused, note=fault)
            tunnel.refuse(refused, TLS_ACCESS_DENIED)
            return
    tunnel.open_up()


async def _judge_second(client: Channel, access: Access, tunnel: Tunnel) -> tuple[Reason, str] | None:
    """The client has been asked for a second hello: the reason to refuse it and a note, or nothing."""
    while True:
        try:
            size, hello = find_second_hello(client.buffer)
        except ProtocolError as error:
            return Reason.MALFORMED, error.public
        tunnel.send_up(size)
        if hello is not None:
            return None if _agrees(hello.server_name, access.place) else (Reason.SNI_MISMATCH, "")
        if not await client.more():
            return (Reason.CUT_OFF, "") if client.buffer and not client.closed else None


def _watch_for_secrets(session: Session, tunnel: Tunnel, first: First) -> None:
    """In clear text a placeholder can be seen, and no secret may go out in clear text, so neither may that."""
    interception = session.state.interception
    if interception is not None and first.speech is not Speech.TLS:
        tunnel.watch_up(interception.vault.placeholder_detector(), Reason.SECRET_TO_WRONG_HOST)


def _finish(session: Session, access: Access, tunnel: Tunnel, upstream: Channel) -> None:
    if tunnel.seen:
        access.record.uses(tunnel.seen)
        access.record.denied_inside(Reason.SECRET_TO_WRONG_HOST)
    upstream.count_moved()
    session.finish(access.record, tunnel.note, upstream.sent, upstream.received)


def _last_words(client: Channel) -> bytes:
    return TLS_ACCESS_DENIED if client.buffer[:1] == b"\x16" else b""


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
