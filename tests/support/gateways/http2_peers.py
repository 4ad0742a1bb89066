"""HTTP/2 peers for tests, made of the h2 library: a client or a server at the far end of a channel.

In memory everything is at hand: what has been sent and not read, and when the far end reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import uvloop

from exeat.gateway.doors.http import serve_http
from exeat.gateway.doors.http2 import serve_http2
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.session import Session
from exeat.gateway.gateway import Gateway
from exeat.gateway.http2.back import Http2Upstream
from exeat.gateway.limits import Limits
from exeat.gateway.record.counters import Counters
from exeat.gateway.state import Place
from exeat.sources import make_policy

Headers = list[tuple[bytes, bytes]]
HOST = b"good.test"


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        async with asyncio.timeout(40):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wrapped())


class Pipe(asyncio.Transport):
    """The transport of a channel whose far end is in the same process. `sent` is what no one has read yet."""

    HIGH = 256 * 1024

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.sent = bytearray()
        self.most_unread = 0
        self.channel = Channel(loop)
        self.reading = True
        self._closing = False
        self._lost = False
        self.channel.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self._closing
        self.sent += data
        self.most_unread = max(self.most_unread, len(self.sent))
        if len(self.sent) > self.HIGH and not self.channel.writing_paused:
            self.channel.pause_writing()

    def take(self) -> bytes:
        data = bytes(self.sent)
        self.sent.clear()
        if self.channel.writing_paused:
            self.channel.resume_writing()
        if self._closing:
            self.lose(None)
        return data

    def lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.channel.loop.call_soon(self.channel.connection_lost, error)

    def close(self) -> None:
        self._closing = True
        if not self.sent:
            self.lose(None)

    def abort(self) -> None:
        self.sent.clear()
        self.lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


@dataclass
class Message:
    """What came on one stream. `headers` are the final ones; `frames` the sizes of the DATA frames."""

    headers: Headers | None = None
    interim: list[Headers] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    frames: list[int] = field(default_factory=list)
    trailers: Headers | None = None
    ended: bool = False
    reset: int | None = None
    unacknowledged: int = 0

    @property
    def status(self) -> bytes:
        assert self.headers is not None
        return dict(self.headers)[b":status"]

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None


class Peer:
    """The far end. `reads` False: it does not even take bytes. `acknowledges` False: it opens no windows."""

    def __init__(self, pipe: Pipe, *, client: bool, **options: Any) -> None:
        self.pipe = pipe
        options = {"validate_outbound_headers": False, "normalize_outbound_headers": False} | options
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, **options))
        self.messages: dict[int, Message] = {}
        self.goaway: tuple[int, int] | None = None
        self.events: list[h2.events.Event] = []
        self.acknowledges = True
        self.reads = True
        self.on_request: Callable[[int, Message], None] | None = None
        self.h2.initiate_connection()

    def __getitem__(self, stream_id: int) -> Message:
        return self.messages.setdefault(stream_id, Message())

    def step(self) -> bool:
        """Read what has come and send what there is. True: something moved."""
        data = self.pipe.take() if self.reads else b""
        if data:
            for event in self.h2.receive_data(data):
                self._take(event)
        out = self.h2.data_to_send() if self.pipe.reading else b""
        if out and not self.pipe.is_closing():
            self.pipe.channel.data_received(out)
        return bool(data or out)

    def _take(self, event: h2.events.Event) -> None:
        self.events.append(event)
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = (int(event.error_code or 0), event.last_stream_id or 0)
            return
        stream_id: int | None = getattr(event, "stream_id", None)
        if not stream_id:
            return
        message = self[stream_id]
        match event:
            case h2.events.RequestReceived() | h2.events.ResponseReceived():
                message.headers = [(bytes(name), bytes(value)) for name, value in event.headers]
                if self.on_request is not None:
                    self.on_request(event.stream_id, message)
            case h2.events.InformationalResponseReceived():
                message.interim.append([(bytes(name), bytes(value)) for name, value in event.headers])
            case h2.events.DataReceived():
                message.data += event.data
                message.frames.append(len(event.data))
                message.unacknowledged += event.flow_controlled_length
                if self.acknowledges:
                    self.acknowledge(event.stream_id)
            case h2.events.TrailersReceived():
                message.trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
            case h2.events.StreamEnded():
                message.ended = True
            case h2.events.StreamReset():
                message.reset = int(event.error_code)

    def acknowledge(self, stream_id: int) -> None:
        message = self[stream_id]
        size, message.unacknowledged = message.unacknowledged, 0
        if size:
            self.h2.acknowledge_received_data(size, stream_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen until the condition holds."""
        async with asyncio.timeout(15):
            while True:
                moved = self.step()
                if condition():
                    return
                await asyncio.sleep(0 if moved else 0.001)

    async def settle(self, rounds: int = 30) -> None:
        """Until nothing moves any more."""
        still = 0
        while still < rounds:
            still = 0 if self.step() else still + 1
            await asyncio.sleep(0.001 if still > rounds // 2 else 0)

    # As a client

    def request(self, method: bytes = b"GET", path: bytes = b"/", *extra: tuple[bytes, bytes], end: bool = True) -> int:
        return self.send(
            [(b":method", method), (b":scheme", b"https"), (b":authority", HOST), (b":path", path), *extra], end=end
        )

    def send(self, headers: Headers, *, end: bool = True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, headers, end_stream=end)
        return stream_id

    async def send_all(self, stream_id: int, data: bytes, *, end: bool = True) -> None:
        """Send a body as the windows allow."""
        at = 0
        while at < len(data):
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room > 0:
                self.h2.send_data(stream_id, data[at : at + room])
                at += room
            await self.until(lambda: self.h2.local_flow_control_window(stream_id) > 0)
        if end:
            self.h2.end_stream(stream_id)
        self.step()


class Origin:
    """An HTTP/1 server in this loop. `handler(reader, writer)` serves one connection; `heads` are what was asked."""

    def __init__(
        self, handler: Callable[[Origin, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        self._handler = handler
        self.heads: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            await self._handler(self, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        return head

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


async def read_chunked(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A chunked body and its trailers, as they stand."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    trailers = b""
    while (line := await reader.readline()) != b"\r\n":
        trailers += line
    return body, trailers


class World:
    """A gateway's core, with clients that speak HTTP/2 to it, in memory, without TLS."""

    def __init__(self, gateway: Gateway, port: int, audit: Path | None) -> None:
        self.gateway = gateway
        self.state = gateway.state
        self.port = port
        self.audit = audit
        self.place: Place = self.state.find(b"%b:%d" % (HOST, port), 0)
        self.sessions: list[Session] = []
        self.tasks: list[asyncio.Task[None]] = []

    def client(self, **options: Any) -> Peer:
        pipe = Pipe(self.state.loop)
        self.serve(pipe.channel)
        return Peer(pipe, client=True, **options)

    def serve(self, channel: Channel) -> Session:
        session = Session(self.state, channel, len(self.sessions) + 1)
        self.sessions.append(session)

        async def serve_stream(stream: Session) -> None:
            await serve_http(stream, self.place, "connect/h2")

        session.task = self.state.loop.create_task(serve_http2(session, serve_stream, self.place, "connect/h2"))
        self.tasks.append(session.task)
        return session


@contextlib.asynccontextmanager
async def world(
    handler: Callable[[Origin, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    limits: Limits | None = None,
    rules: Sequence[str] = ("{host}:{port} private",),
    audit: Path | None = None,
) -> AsyncIterator[tuple[World, Origin]]:
    """A core in front of one origin. In the end no stream may be left over, nor a defect have shown."""
    origin = Origin(handler)
    await origin.start()
    host = HOST.decode()
    policy = make_policy([rule.format(host=host, port=origin.port) for rule in rules], hosts={host: "127.0.0.1"})
    async with Gateway(policy, limits=limits, audit=str(audit) if audit else None) as gateway:
        made = World(gateway, origin.port, audit)
        try:
            yield made, origin
        finally:
            for session in made.sessions:
                session.client.abort()
            if made.tasks:
                await asyncio.wait(made.tasks, timeout=10)
            await asyncio.sleep(0.01)
            await origin.close()
        assert all(task.done() for task in made.tasks)
        assert not made.state.sessions
        assert made.state.counters.internal_errors == 0


GET = b"GET /a HTTP/1.1\r\nHost: good.test:444\r\nAccept: */*\r\nX-Api-Key: k\r\n\r\n"


class Server(Peer):
    """An HTTP/2 server. `answer(stream, headers)` and the h2 connection are the test's to use."""

    def __init__(self, pipe: Pipe, **options: Any) -> None:
        super().__init__(pipe, client=False, **options)

    @property
    def last(self) -> int:
        return max(self.messages)

    def answer(self, stream: int, *headers: tuple[bytes, bytes], status: bytes = b"200", end: bool = False) -> None:
        self.h2.send_headers(stream, [(b":status", status), *headers], end_stream=end)

    def asked(self, stream: int) -> Headers:
        return self[stream].headers or []


class Reader:
    """Reads an upstream channel in push mode, as an exchange does."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.got = bytearray()
        self.lost: list[Exception | None] = []
        channel.push_to(self)
        channel.when_lost(self.lost.append)

    def on_data(self, data: bytes) -> None:
        self.got += data

    def on_eof(self) -> None:
        raise AssertionError("a stream has no end of its own")

    @property
    def text(self) -> bytes:
        return bytes(self.got)


@contextlib.asynccontextmanager
async def upstream(limits: Limits | None = None, **options: Any) -> AsyncIterator[tuple[Http2Upstream, Server]]:
    pipe = Pipe(asyncio.get_running_loop())
    made = Http2Upstream(pipe.channel, limits or Limits(), Counters())
    server = Server(pipe, **options)
    made.start()
    await server.settle(3)
    yield made, server
    made.close()


def open_stream(made: Http2Upstream, request: bytes = GET) -> Reader:
    reader = Reader(made.open_stream())
    reader.channel.write(request)
    return reader
