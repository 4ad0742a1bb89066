"""Connections that nftables redirected to us: the client believes that it talks to its server.

Where it was meant to go is all that counts. One of our own addresses stands for a name; any other is an
address that needs a rule of its own, whatever Host or SNI say. On ports 80 and 443 the client speaks first, so
nothing is dialled before its first bytes are judged; on other ports the server may be the one to speak, so an
allowed place is dialled at once. There is no protocol of ours to say no in: a refusal is said in the client's
own, and to one that speaks none we know the connection breaks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import sys
from asyncio import BaseTransport
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from exeat.errors import ProtocolError
from exeat.gateway.doors.http import serve_http
from exeat.gateway.doors.tunnel import (
    SILENT,
    TLS_ACCESS_DENIED,
    WEB_PORTS,
    Action,
    First,
    Inner,
    Speech,
    judge_first,
    read_first,
    relay_judged,
    serve_tunnel,
)
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import as_stream
from exeat.gateway.gates.admission import admit_interception, deny, open_upstream
from exeat.gateway.gates.judging import place_now
from exeat.gateway.gates.session import Session
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.policy import LOCALHOST, LOOPBACK, Address
from exeat.reasons import ProxyError, Reason
from exeat.values import frozen
from exeat.wire.http1 import sniff_request

ServeInner = Callable[[Session, Inner], Awaitable[None]]
_log = logging.getLogger("exeat")
# linux/netfilter_ipv4.h and netfilter_ipv6/ip6_tables.h: the same number for both families.
_SO_ORIGINAL_DST: Final = 80
_LEVELS: Final = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_SOCKADDR_BYTES: Final = 28  # a sockaddr_in6; a sockaddr_in is shorter
# No such connection is tracked, or nothing here tracks connections at all: then it was not redirected.
_NOT_REDIRECTED: Final = (errno.ENOENT, errno.ENOPROTOOPT)
PROTOCOL: Final = "redirect"
PROTOCOL_HTTP: Final = "redirect/http"
# How long a client that is refused gets to show what it speaks. One that speaks first does so within a
# millisecond, since no network lies between; one that waits for its server must not wait for us instead, which
# no server would make it do for longer than a round trip across the world.
_GRACE_S: Final = 0.2
_METHOD: Final = re.compile(rb"\s*+([!-~]{1,32})(?![!-~])")


# Where it was meant to go


@frozen
class Destination:
    """What a client called connect() with."""

    ip: IPv4Address | IPv6Address
    port: int


# Redirected or not, the kernel would not say where to. Never to be taken for a connection to ourselves.
NOWHERE: Final = Destination(IPv4Address(0), 0)


def find_destination(transport: BaseTransport) -> Destination | None:
    """The original destination of an accepted connection. None: it is ourselves, so the client wants a proxy.

    Asked once, while the transport is being made: a descriptor's number may belong to another connection later.
    """
    try:
        stream = as_stream(transport)
        if stream is not None:
            meant = stream.original_destination()
            return None if meant is None else parse_sockaddr(meant)
        ours, found = _ask_kernel(transport.get_extra_info("socket"))
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_REDIRECTED:
            return None
        _log.warning("the original destination of a connection is unknown: %r", error)
        return NOWHERE
    return None if found == _listener(ours[0], ours[1]) else found


def _ask_kernel(offered: socket.socket) -> tuple[tuple[str, int], Destination]:
    """The loops offer a stand-in for the socket; uvloop's duplicates the descriptor for each question."""
    sock = socket.socket(offered.family, socket.SOCK_STREAM, 0, offered.fileno())
    try:
        ours = sock.getsockname()
        return ours, parse_sockaddr(sock.getsockopt(_LEVELS[offered.family], _SO_ORIGINAL_DST, _SOCKADDR_BYTES))
    finally:
        sock.detach()


@lru_cache(maxsize=64)
def _listener(host: str, port: int) -> Destination:
    return Destination(ip_address(host.partition("%")[0]), port)


# A program comes back to the same few places; reading an address afresh costs about 3 us.
@lru_cache(maxsize=1_024)
def parse_sockaddr(raw: bytes) -> Destination:
    """A sockaddr_in or sockaddr_in6 as the kernel writes it. ValueError if it is neither."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    port = int.from_bytes(raw[2:4])
    if family == socket.AF_INET and len(raw) >= 16:
        return Destination(IPv4Address(raw[4:8]), port)
    if family == socket.AF_INET6 and len(raw) >= 28:
        return Destination(IPv6Address(raw[8:24]), port)  # without its zone: an address of this link is denied anyway
    raise ValueError(f"no address in {raw.hex()}")


async def serve_redirected(session: Session, destination: Destination, serve_inner: ServeInner) -> None:
    """Serve one redirected connection to its end. `serve_inner` serves requests inside TLS."""
    names = session.state.names
    ip, port = destination.ip, destination.port
    if destination is NOWHERE or names is None:
        record = session.new_record(PROTOCOL, "CONNECT")
        record.leads_nowhere("the kernel did not say where the connection was meant to go")
        session.client.reset()
    elif not names.covers(ip):
        await _serve_place(session, _place_of(session.state, Address(ip), port), serve_inner)
    elif (name := names.name_of(ip)) is None:
        await _refuse_unknown(session, destination)
    else:
        names.hold(ip)  # until the end the address must not come to mean another name
        try:
            await _serve_place(session, f"{name}:{port}", serve_inner)
        finally:
            names.release(ip)


def _place_of(state: State, address: Address, port: int) -> str:
    """The place at an address. Where rules mean the host by `localhost`, or by its other address, it is by that name:
    which address its server listens on is then not the client's business.
    """
    where = f"{address.authority}:{port}"
    if address.ip not in LOOPBACK or port == 0:
        return where
    decision = state.find(where.encode("ascii"), 0).decision
    is_listed = decision.allowed and decision.rule is not None and decision.rule.pattern.network is not None
    if is_listed or decision.reason is Reason.DENIED_BY_RULE:
        return where
    by_name = f"{LOCALHOST}:{port}"
    return by_name if state.find(by_name.encode("ascii"), 0).decision.allowed else where


# What it speaks, and how it is served


class Way(Enum):
    """How a connection is served, once it is known what its client speaks, as far as that matters."""

    REQUESTS = 0  # HTTP, each request decided on its own
    DIAL_FIRST = 1  # the server may be the one to speak: connect it, then judge as inside any tunnel
    JUDGE_FIRST = 2  # nothing is dialled before the first bytes are judged; and all that is denied
    NOTHING = 3  # it never asked for anything, so there is nothing to decide


def choose_way(place: Place, first: First) -> Way:
    allowed, takes_http = place.decision.allowed, _takes_http(place)
    if takes_http and first.speech is Speech.HTTP:
        return Way.REQUESTS
    if allowed and not _speaks_first(place):
        return Way.DIAL_FIRST
    if first.speech is Speech.NOTHING and (allowed or takes_http or place.is_intercepted):
        return Way.NOTHING
    return Way.JUDGE_FIRST


class Hearing(Enum):
    """How long to wait for the client's first bytes before anything is dialled."""

    NONE = 0
    MOMENT = 1
    PATIENT = 2


def choose_hearing(place: Place) -> Hearing:
    if _speaks_first(place):
        return Hearing.PATIENT
    if not place.decision.allowed:
        return Hearing.PATIENT if _takes_http(place) else Hearing.MOMENT
    # Where a request may be let through to an address that a tunnel may not, it must be seen which of them comes.
    return Hearing.MOMENT if place.judges_by_request else Hearing.NONE


def _speaks_first(place: Place) -> bool:
    return place.port in WEB_PORTS or place.is_intercepted


def _takes_http(place: Place) -> bool:
    """May an HTTP request to this place be allowed? Some may where a tunnel may not; on port 443 HTTP is not spoken.

    What is meant for a proxy is not for us to serve.
    """
    decision = place.decision
    if place.port == 443 or place.is_proxy:
        return False
    return decision.allowed or decision.reason is Reason.NEEDS_INTERCEPTION


async def _serve_place(session: Session, where: str, serve_inner: ServeInner) -> None:
    state = session.state
    try:
        place = state.find(where.encode("ascii"), 0)
    except ProtocolError as error:  # port 0, which connect() takes
        record = session.new_record(PROTOCOL, "CONNECT")
        record.names((where.rpartition(":")[0], 0))
        record.malformed(error)
        session.client.reset()
        return
    if not place.decision.allowed:
        place = await session.settle(place)
    first = await _hear(session, place)
    place = place_now(state, place)
    inner: Inner | None = None
    match choose_way(place, first):
        case Way.REQUESTS:
            await serve_http(session, place, PROTOCOL_HTTP)
        case Way.DIAL_FIRST:
            inner = await _dial_first(session, place)
        case Way.JUDGE_FIRST:
            inner = await _judge_first(session, place, first)
        case Way.NOTHING:
            pass
    if inner is not None:
        await serve_inner(session, inner)


async def _hear(session: Session, place: Place) -> First:
    """What the client speaks, as far as it must be known before anything is dialled."""
    if _takes_http(place) and place.decision.allowed and await _speaks_http_already(session.client):
        return First(Speech.HTTP)
    hearing = choose_hearing(place_now(session.state, place))
    return SILENT if hearing is Hearing.NONE else await _listen(session, patient=hearing is Hearing.PATIENT)


async def _listen(session: Session, *, patient: bool) -> First:
    """What the client speaks. A client of whom it is not known that it speaks first gets a moment only."""
    client, limits = session.client, session.state.limits
    if not client.buffer:
        if patient:
            session.watch(limits.first_byte_s, client.close)
            await client.more()
        else:
            timer = client.loop.call_later(_GRACE_S, client.wake)
            try:
                await client.more()
            finally:
                timer.cancel()
        if not client.buffer:
            return SILENT
    session.watch(limits.head_s, client.abort)
    return await read_first(client)


async def _speaks_http_already(client: Channel) -> bool:
    """Has the client sent an HTTP request by now? Then it can have a kept connection instead of one of its own.

    A client that speaks first has mostly done so before it is accepted, so two turns of the loop show it, without a
    wait that a server-first protocol would notice. Saves half of the CPU of a short request on such a port.
    """
    for _ in range(2):
        if client.buffer:
            break
        await asyncio.sleep(0)
    return bool(client.buffer) and sniff_request(client.buffer) is True


async def _dial_first(session: Session, place: Place) -> Inner | None:
    access = Access(session.new_record(PROTOCOL, "CONNECT", place), place, place.decision)
    upstream = await open_upstream(session.state, access)
    if isinstance(upstream, Refusal):
        await _answer(session, await _listen(session, patient=False), upstream)
        return None
    return await serve_tunnel(session, access, upstream, PROTOCOL)


async def _judge_first(session: Session, place: Place, first: First) -> Inner | None:
    decision = place.decision
    record = _new_record(session, first, place)
    access = Access(record, place, decision)
    verdict = judge_first(first, place)
    if verdict is Action.INTERCEPT:
        refusal = await admit_interception(access)
        if refusal is None:
            return Inner(place, PROTOCOL, record)
        await _answer(session, first, refusal)
    elif not decision.allowed and not place.is_intercepted:
        await _answer(session, first, deny(record, place, decision, note=first.fault))
    elif verdict is not Action.RELAY or not decision.allowed:
        reason = verdict if isinstance(verdict, Reason) else decision.reason
        record.denied_inside(reason, decision, first.fault)
        await _answer(session, first, Refusal(403, f"{place} takes TLS only", ProxyError.HTTP_REQUEST_DENIED))
    else:
        upstream = await open_upstream(session.state, access)
        if isinstance(upstream, Refusal):
            await _answer(session, first, upstream)
        else:
            await relay_judged(session, access, upstream, first)
    return None


async def _refuse_unknown(session: Session, destination: Destination) -> None:
    """One of our own addresses that stands for nothing: made up, or kept far beyond its time."""
    first = await _listen(session, patient=destination.port in WEB_PORTS)
    record = _new_record(session, first)
    record.names((destination.ip.compressed, destination.port))
    why = f"{destination.ip} belongs to no name"
    record.leads_nowhere(why)
    await _answer(session, first, Refusal(403, why, ProxyError.DESTINATION_IP_PROHIBITED))


def _new_record(session: Session, first: First, place: Place | None = None) -> AccessRecord:
    if first.speech is Speech.HTTP:
        return session.new_record(PROTOCOL_HTTP, _method(session), place)
    return session.new_record(PROTOCOL, "CONNECT", place)


def _method(session: Session) -> str:
    """The first word of what begins like a request, if it can be a method at all."""
    found = _METHOD.match(session.client.buffer)
    return found[1].decode("ascii") if found is not None else ""


async def _answer(session: Session, first: First, refusal: Refusal) -> None:
    """Say no in the client's own protocol; the refusal is on record already."""
    client = session.client
    if first.speech is Speech.HTTP:
        session.reply(refusal, close=True, head_only=_method(session) == "HEAD")
        await session.linger()
    elif refusal.status == 403 and client.buffer[:1] == b"\x16":
        client.write(TLS_ACCESS_DENIED)
        await session.linger()
    else:
        # An orderly end would look like a server that had nothing to say.
        client.reset()
