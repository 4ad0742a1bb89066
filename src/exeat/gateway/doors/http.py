"""HTTP/1.1 proxy requests, one after the other on a connection, each decided on its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from exeat.errors import ProtocolError
from exeat.gateway.doors.tunnel import Inner, serve_tunnel, serve_unopened
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.exchange import Exchange
from exeat.gateway.flow.relay import Tunnel
from exeat.gateway.flow.upload import is_repeatable
from exeat.gateway.gates.admission import admit_interception, deny, open_upstream, reopen_upstream
from exeat.gateway.gates.dial import explain_break
from exeat.gateway.gates.judging import judge_request, keep_upstream, place_now
from exeat.gateway.gates.session import Session
from exeat.gateway.gates.treating import UNTREATED, Treated, refuse_misuse, treat
from exeat.gateway.limits import Budget
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.policy import Decision, is_same_host
from exeat.reasons import ProxyError, Reason
from exeat.wire.http1 import ESTABLISHED, RequestHead, check_origin_target, parse_absolute_target

if TYPE_CHECKING:
    from exeat.secrets.treatment import Treatment

_KEPT_BYTES: Final = 8 * 1024  # of a head as it is sent on, with values in it


async def serve_http(
    session: Session,
    bound: Place | None = None,
    protocol: str = "http",
    *,
    secure: bool = False,
    prefers_h2: bool = False,
) -> Inner | None:
    """Serve requests until either side has had enough. `bound`: they come through a tunnel to that place.

    `secure`: inside TLS, and so are they to go on. Returns what is inside a tunnel that was opened, if it is to
    be served.
    """
    door = _Door(session, bound, protocol, secure, prefers_h2)
    try:
        return await _serve_requests(door)
    finally:
        session.forget_heads()


async def _serve_requests(door: _Door) -> Inner | None:
    session, bound, protocol = door.session, door.bound, door.protocol
    while True:
        try:
            head = await session.read_head()
            if head is None:
                return None
        except ProtocolError as error:
            await _refuse_malformed(session, session.new_record(protocol, "", bound), error)
            return None
        if head.method == b"CONNECT" and bound is None:
            return await _serve_connect(session, head)
        if not await _serve_request(door, head):
            return None
        if session.client.buffer:
            await asyncio.sleep(0)  # a pipeline of requests must not keep the others waiting


class _Found(NamedTuple):
    """What became of a request: who it was for, and what the policy and the secrets made of it."""

    head: RequestHead
    place: Place
    decision: Decision
    path: bytes
    treated: Treated


class _Door:
    """How the requests of one connection come in.

    A request with the same head as the one before, byte for byte, is for the same place, under the same rule, and sent
    on in the same words, as long as neither the policy nor a value in it has changed. So when a head has come twice,
    all that is kept here, for this connection alone, since it holds a credential: 10 us less for each that follows.
    What else is to be found out, recorded and counted for a request is so for each.
    """

    __slots__ = ("_found", "_last_head", "bound", "prefers_h2", "protocol", "secure", "session")

    def __init__(self, session: Session, bound: Place | None, protocol: str, secure: bool, prefers_h2: bool) -> None:
        self.session = session
        self.bound = bound
        self.protocol = protocol
        self.secure = secure
        self.prefers_h2 = prefers_h2
        self._last_head: RequestHead | None = None
        self._found: _Found | None = None

    def keep(self, head: RequestHead, access: Access, treated: Treated) -> None:
        """For the next request, if this is a head that comes again: to keep it each time takes 1 us."""
        comes_again, self._last_head, self._found = head is self._last_head, head, None
        treatment = treated.treatment
        if comes_again and (treatment is None or (treatment.is_repeatable and treatment.size <= _KEPT_BYTES)):
            self._found = _Found(head, access.place, access.decision, access.path, treated)

    def recall(self, head: RequestHead) -> _Found | None:
        """What was found for the same head, if that would be found now."""
        found = self._found
        if found is None or found.head is not head or found.place.policy is not self.session.state.policy:
            return None
        treatment = found.treated.treatment
        return found if treatment is None or treatment.is_current() else None


async def _refuse_malformed(session: Session, record: AccessRecord, error: ProtocolError) -> None:
    record.malformed(error)
    session.reply(Refusal(error.status, error.public, ProxyError.HTTP_REQUEST_ERROR), close=True)
    await session.linger()


def _identify(state: State, head: RequestHead, bound: Place | None) -> tuple[Place, bytes]:
    """Whom the request is for, and the path to ask there. The Host header must say the same (RFC 9112 3.2.2)."""
    if bound is not None:
        if head.method == b"CONNECT":
            raise ProtocolError("CONNECT inside a tunnel", status=405)
        path = check_origin_target(head.target, head.method)
        named = bound if head.host is None else state.find(head.host, bound.port)
        if named.key != bound.key:
            if named.port != bound.port or not is_same_host(named.host, bound.host):
                raise ProtocolError("the Host header names another host than the tunnel", status=421)
            return named, path  # `localhost`, as the client wrote it
        return place_now(state, bound), path
    authority, path = parse_absolute_target(head.target, head.method)
    place = state.find(authority, 80)
    if head.host is not None and head.host != authority and state.find(head.host, 80).key != place.key:
        raise ProtocolError("the Host header and the request target name different hosts")
    return place, path


async def _serve_request(door: _Door, head: RequestHead) -> bool:
    """One request. False: the connection is not to be used for another."""
    session, bound = door.session, door.bound
    state = session.state
    record = session.new_record(door.protocol, head.method.decode("ascii"), bound)
    if bound is None and state.credentials is not None and not state.credentials.match_basic(head.authorization):
        return await _refuse(session, head, state.credentials.refuse(record, session.client))
    found = door.recall(head)
    if found is not None:
        _, place, decision, path, treated = found
        record.names(place.key)
        access = Access(record, place, decision, head.method, path, door.secure, door.prefers_h2)
        if treated.treatment is not None:
            record.uses(treated.treatment.names)
    else:
        try:
            place, path = _identify(state, head, bound)
            if not place.decision.allowed:
                place = await session.settle(place)
            record.names(place.key)
            decision, path = judge_request(state, place, head.method, path)
            result: Treated | Refusal
            if decision.allowed:
                access = Access(record, place, decision, head.method, path, door.secure, door.prefers_h2)
                result = UNTREATED if state.interception is None else await treat(session, access, head)
            else:
                result = deny(record, place, decision)
        except ProtocolError as error:
            await _refuse_malformed(session, record, error)
            return False
        if isinstance(result, Refusal):
            return await _refuse(session, head, result)
        treated = result
        door.keep(head, access, treated)
    upstream = await open_upstream(state, access, reuse=True, repeatable=is_repeatable(head))
    if isinstance(upstream, Refusal):
        return await _refuse(session, head, upstream, read=treated.body is not None)
    return await _exchange(session, head, access, upstream, treated)


async def _refuse(session: Session, head: RequestHead, refusal: Refusal, *, read: bool = False) -> bool:
    """Answer a refusal. The connection goes on unless a body is on its way that will not be read."""
    keep = head.keep_alive and (read or not head.has_body) and not session.draining and head.minor == 1
    session.reply(refusal, close=not keep, head_only=head.method == b"HEAD")
    if not keep:
        await session.linger()
    return keep


async def _exchange(session: Session, head: RequestHead, access: Access, upstream: Channel, treated: Treated) -> bool:
    treatment = treated.treatment
    state, client = session.state, session.client
    limits = state.limits
    budget = state.budgets.of(access.decision.rule)
    while True:
        reused = upstream.is_reused
        sent, received = upstream.sent, upstream.received
        exchange = Exchange(client, upstream, head, limits, treatment, state.memory, state.known_heads)
        session.begin(access, upstream, exchange.stop)
        session.watch(limits.response_s, exchange.expire, exchange.patience)
        exchange.start(access.path, access.authority, budget, treated.body)
        await exchange.done
        if not (exchange.failure is not None and reused and exchange.may_retry()):
            break
        fresh = await reopen_upstream(state, access)
        if isinstance(fresh, Refusal):
            session.let_go(is_over=True)
            return await _refuse(session, head, fresh, read=treated.body is not None)
        upstream = fresh
    sent, received = upstream.sent - sent, upstream.received - received
    failure = exchange.failure
    if treatment is not None:
        access.record.uses(treatment.names)  # the body may have brought more
        if exchange.misused:
            refusal = refuse_misuse(access, exchange.misused)
            failure = refusal if failure is not None else None
    if failure is not None and access.secure and exchange.broken_by is not None and not (reused or received):
        failure = explain_break(exchange.broken_by, access, failure, upstream)
    if exchange.upgraded is not None:
        sent, received, note = await _relay_upgraded(session, upstream, exchange, budget, sent, received, treatment)
        session.finish(access.record, note, sent, received, 101)
        return False
    session.let_go()
    if exchange.reuse_upstream:
        keep_upstream(state, access, upstream)
    session.finish(access.record, exchange.note, sent, received, exchange.status)
    if failure is not None:
        session.reply(failure, close=True, head_only=head.method == b"HEAD")
    if not exchange.keep_client or session.draining:
        if head.has_body and not client.closed:
            await session.linger()
        return False
    return True


async def _relay_upgraded(
    session: Session,
    upstream: Channel,
    exchange: Exchange,
    budget: Budget | None,
    sent: int,
    received: int,
    treatment: Treatment | None,
) -> tuple[int, int, str]:
    """After a WebSocket's 101 the two streams are joined."""
    sent_before, received_before = upstream.sent - sent, upstream.received - received
    tunnel = Tunnel(session.client, upstream, budget)
    if treatment is not None:
        tunnel.guard_down(treatment.leak_guard(), Reason.SECRET_IN_RESPONSE)
    assert session.live is not None
    session.begin(session.live, upstream, tunnel.stop)
    session.watch_idle(tunnel.stop)
    upstream.put_back(exchange.upgraded or b"")  # before what came while this task was being woken
    tunnel.open_down()
    tunnel.open_up()
    await tunnel.done
    upstream.count_moved()
    if tunnel.seen:
        session.state.counters.block(*session.live.place.key, tunnel.note)
    return upstream.sent - sent_before, upstream.received - received_before, tunnel.note


async def _serve_connect(session: Session, head: RequestHead) -> Inner | None:
    """CONNECT. Returns what is inside when requests are to be served there, each like any other."""
    state = session.state
    record = session.new_record("connect", "CONNECT")
    if state.credentials is not None and not state.credentials.match_basic(head.authorization):
        session.reply(state.credentials.refuse(record, session.client), close=True)
        await session.linger()
        return None
    try:
        place = state.find(head.target, 0)
        record.names(place.key)
        if head.has_body:
            raise ProtocolError("CONNECT with a body")
        if head.host is not None and head.host != head.target and not _same_host(state, head.host, place):
            raise ProtocolError("the Host header and the CONNECT target name different hosts")
    except ProtocolError as error:
        await _refuse_malformed(session, record, error)
        return None
    if not place.decision.allowed:
        place = await session.settle(place)
    access = Access(record, place, place.decision)
    upstream = await (admit_interception(access) if place.is_intercepted else open_upstream(state, access))
    if isinstance(upstream, Refusal):
        # Closed even though the request was well formed: bytes sent ahead were meant for the tunnel.
        session.reply(upstream, close=True)
        await session.linger()
        return None
    session.client.write(ESTABLISHED)
    record.answered(200)
    if upstream is None:
        return await serve_unopened(session, access, "connect")
    return await serve_tunnel(session, access, upstream, "connect")


def _same_host(state: State, host_header: bytes, place: Place) -> bool:
    """Clients send `Host: name` or `Host: name:port` with CONNECT; only the name must agree."""
    return is_same_host(state.find(host_header, place.port).host, place.host)
