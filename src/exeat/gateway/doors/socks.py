"""SOCKS5: a name or an address, and then a tunnel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from exeat.errors import ProtocolError
from exeat.gateway.doors.tunnel import Inner, serve_tunnel, serve_unopened
from exeat.gateway.gates.admission import admit_interception, open_upstream
from exeat.gateway.gates.session import Session
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access
from exeat.wire import socks5

Parsed = TypeVar("Parsed")


async def serve_socks(session: Session) -> Inner | None:
    """One SOCKS5 connection. Returns what is inside when requests are to be served there."""
    state, client = session.state, session.client
    record = session.new_record("socks5", "CONNECT")
    session.watch(state.limits.head_s, client.close)
    try:
        if not await _greet(session, record):
            return None
        request = await _read(session, socks5.parse_request)
        authority = f"{request.host}:{request.port}".encode("ascii")
        place = state.find(authority, 0)
        record.names(place.key)
    except ProtocolError as error:
        record.malformed(error)
        reply = error.reply if isinstance(error, socks5.SocksError) else socks5.Reply.NOT_ALLOWED
        client.write(socks5.encode_reply(reply))
        await session.linger()
        return None
    if not place.decision.allowed:
        place = await session.settle(place)
    access = Access(record, place, place.decision)
    upstream = await (admit_interception(access) if place.is_intercepted else open_upstream(state, access))
    if isinstance(upstream, Refusal):
        client.write(socks5.encode_reply(upstream.socks_reply))
        await session.linger()
        return None
    client.write(socks5.encode_reply(socks5.Reply.SUCCEEDED))
    if upstream is None:
        return await serve_unopened(session, access, "socks5")
    return await serve_tunnel(session, access, upstream, "socks5")


async def _greet(session: Session, record: AccessRecord) -> bool:
    """Agree on a method; check the credentials if we want some. A refusal is recorded before it is answered."""
    client, credentials = session.client, session.state.credentials
    offered = await _read(session, socks5.parse_greeting)
    if credentials is None and socks5.NO_AUTH in offered:
        client.write(bytes((socks5.VERSION, socks5.NO_AUTH)))
        return True
    if socks5.USER_PASSWORD not in offered:
        if credentials is None:
            record.lacks_credentials()
        else:
            credentials.refuse(record, client)
        client.write(socks5.NO_ACCEPTABLE_METHOD)
        await session.linger()
        return False
    client.write(bytes((socks5.VERSION, socks5.USER_PASSWORD)))
    user, password = await _read(session, socks5.parse_credentials)
    if credentials is None or credentials.match(user, password):
        client.write(b"\x01\x00")
        return True
    credentials.refuse(record, client)
    client.write(b"\x01\x01")
    await session.linger()
    return False


async def _read(session: Session, parse: Callable[[bytes], tuple[Parsed, int] | None]) -> Parsed:
    client = session.client
    while True:
        parsed = parse(client.buffer)
        if parsed is not None:
            value, used = parsed
            client.take(used)
            return value
        if not await client.more():
            raise socks5.SocksError("cut off")
