"""How DNS queries come in and answers go out: datagrams, and streams of framed messages. Knows no rules."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from exeat.wire.dns import MAX_QUERY_BYTES

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
