"""HTTP/2 with a client: each stream is served as an HTTP/1 connection with one request."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from h2.errors import ErrorCodes
from h2.events import RequestReceived

from exeat.errors import ProtocolError
from exeat.gateway.gates.session import Session
from exeat.gateway.http2.link import MAX_STREAMS, Link
from exeat.gateway.http2.stream import Stream
from exeat.gateway.limits import Allowance
from exeat.gateway.state import Place
from exeat.wire.http2 import ResponseReader, request_text
from exeat.wire.http2_frames import Http2Error

_log = logging.getLogger("exeat")

Serve = Callable[[Session], Awaitable[None]]
# Streams that a client opens and ends again before it is answered (CVE-2023-44487), or makes us end (CVE-2025-8671).
_RESETS: Final = 200
_RESETS_PER_S: Final = 10.0


async def serve_http2(session: Session, serve: Serve, bound: Place | None = None, protocol: str = "h2") -> None:
    """Serve the streams of a connection, each as a session of its own that `serve` serves, until it ends.

    `bound` and `protocol` are for the records of what is too malformed to be served.
    """
    front = _Front(session, serve, bound, protocol)
    try:
        await front.run()
    except asyncio.CancelledError:
        front.cancel()
        raise
    finally:
        await front.finish()


class _FrontStream(Stream):
    """A client's stream: the peer's message is the request, the channel's the response."""

    link: _Front

    def __init__(self, link: _Front, number: int, *, to_head: bool) -> None:
        super().__init__(link, number, ResponseReader(to_head=to_head))

    def on_delivered(self) -> None:
        self.channel.eof_received()  # there is one request on a stream, so the core looks for no other

    def check_over(self) -> None:
        if not self.ended:
            return
        if self.peer_ended:
            self.link.forget(self)
        elif self.left == 0 and not self.is_closing():
            return  # all of the body has come; the frame that says so is on its way
        else:
            self.link.reset(self, ErrorCodes.NO_ERROR)  # answered before the whole body came: the rest is not wanted
        self.lose(None)

    def on_write_eof(self) -> None:
        if self.reader.ends_with_connection and not self.ended:
            self.trailers = []
            self.link.pump(self)

    def on_close(self) -> None:
        self.on_write_eof()
        if self.trailers is None:
            self.on_abort()  # half an answer, or none
        else:
            self.check_over()

    def on_abort(self) -> None:
        self.link.reset(self, ErrorCodes.NO_ERROR if self.ended else ErrorCodes.INTERNAL_ERROR)
        self.drop_output()
        self.held.clear()
        self.lose(None)


class _Front(Link):
    """A client's connection."""

    def __init__(self, session: Session, serve: Serve, bound: Place | None, protocol: str) -> None:
        state = session.state
        super().__init__(session.client, state.limits.max_header_bytes, state.counters, client_side=False)
        self._session = session
        self._state = state
        self._serve = serve
        self._bound = bound
        self._protocol = protocol
        self._tasks: set[asyncio.Task[None]] = set()
        self._resets = Allowance(_RESETS, _RESETS_PER_S, self.loop.time())

    # The connection

    async def run(self) -> None:
        """Until the connection is over. What it carries is moved by callbacks; this only waits for its end."""
        self._session.watch(self._state.limits.keep_alive_s, self._expire)
        self.start()
        while not self.closed:
            if self._session.draining and not self.leaving:
                self.say_goaway()
                self.check_idle()
            else:
                await self.channel.more()  # woken at the end, and when the gateway wants to stop

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        """End what is left. The records are written by the streams' tasks as they unwind."""
        self.end(ConnectionResetError("the connection is over"))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def on_idle(self) -> None:
        if self.leaving:
            self.end(ConnectionResetError("the connection is over"))
        else:
            self._session.watch(self._state.limits.keep_alive_s, self._expire)

    def _expire(self) -> None:
        self.say_goaway()
        self.on_idle()

    def on_goaway(self, last_stream_id: int) -> None:
        self.leaving = True
        self.check_idle()

    def on_fault(self, error: Http2Error) -> None:
        self._record(error)

    def on_end(self) -> None:
        self._session.watch(math.inf, self.channel.abort)
        self.channel.wake()

    def on_malformed(self, error: ProtocolError) -> None:
        self._record(error)
        self._count_reset()

    def _record(self, error: ProtocolError) -> None:
        self._session.new_record(self._protocol, "", self._bound).malformed(error)

    def _count_reset(self) -> None:
        if not self._resets.spend(self.loop.time()):
            raise Http2Error("too many HTTP/2 streams that fail or are reset", ErrorCodes.ENHANCE_YOUR_CALM)

    def report_defect(self, error: Exception) -> None:
        self.counters.internal_errors += 1
        _log.error("connection %d failed", self._session.number, exc_info=error)

    # Streams

    def on_reset(self, stream: Stream, code: int | None) -> None:
        answered = stream.ended
        super().on_reset(stream, code)
        if not answered:
            self._count_reset()

    def on_request(self, event: RequestReceived) -> None:
        ended = event.stream_ended is not None
        text = request_text(event.headers, ended=ended)
        limits = self._state.limits
        crowd = len(self._state.sessions)
        if (
            self.leaving
            or len(self._tasks) >= 2 * MAX_STREAMS  # streams that are over, with work that is not
            or crowd >= min(limits.max_connections, limits.max_connections_per_sandbox)
        ):
            self.h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            self._count_reset()
            return
        stream = _FrontStream(self, event.stream_id, to_head=text.method == b"HEAD")
        self.carried[stream.id] = stream
        self._session.watch(math.inf, self.channel.abort)  # streams have time limits of their own
        stream.begin_message(text, ended=ended)
        connection = self._session
        session = Session(self._state, stream.channel, connection.number, requests=connection.requests)
        if connection.draining:
            session.drain()
        self._state.sessions.add(session)
        task = session.start(self._serve_stream(session))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._on_served(session, task))

    async def _serve_stream(self, session: Session) -> None:
        """One request. Whatever happens here stays here: other streams never notice."""
        try:
            await self._serve(session)
        except Exception as error:
            self.report_defect(error)
            session.client.abort()

    def _on_served(self, session: Session, task: asyncio.Task[None]) -> None:
        """The request is over, or was cancelled before it began; its stream is not before its last bytes are taken."""
        self._tasks.discard(task)
        channel = session.client
        channel.close()
        if session.upstream is not None:
            session.upstream.abort()
        if channel.closed:
            self._state.sessions.discard(session)
        else:
            channel.when_lost(lambda _: self._state.sessions.discard(session))
            session.watch_last_bytes()
