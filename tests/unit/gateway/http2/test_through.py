"""HTTP/2 on both sides, with the whole core between: what goes in comes out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from ipaddress import IPv4Address

import h2.events
import pytest
from h2.errors import ErrorCodes

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.resolve import IPAddress
from exeat.gateway.http2.back import Http2Upstream
from exeat.gateway.http2.link import STREAM_WINDOW
from exeat.gateway.limits import Limits
from exeat.gateway.record.counters import Counters
from tests.support.gateways.http2_peers import Message, Origin, Peer, Pipe, World, run, world


class Both:
    """A client and the servers that the core has connected to: the last of them is `server`."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.client = made.client()
        self.upstreams: list[Http2Upstream] = []
        self.servers: list[Peer] = []
        self.on_request: Callable[[int, Message], None] | None = None

    @property
    def server(self) -> Peer:
        return self.servers[-1]

    async def dial(
        self, streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
    ) -> tuple[Channel, IPAddress]:
        if not (self.upstreams and self.upstreams[-1].usable):
            pipe = Pipe(streams.loop)
            upstream = Http2Upstream(pipe.channel, Limits(), Counters())
            upstream.start()
            self.upstreams.append(upstream)
            server = Peer(pipe, client=False)
            server.on_request = self.on_request
            self.servers.append(server)
        return self.upstreams[-1].open_stream(), IPv4Address("127.0.0.1")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while True:
                moved = [peer.step() for peer in (self.client, *self.servers)]
                if condition():
                    return
                await asyncio.sleep(0 if any(moved) else 0.001)

    async def settle(self) -> None:
        still = itertools.count()
        await self.until(lambda: next(still) > 100)


@contextlib.asynccontextmanager
async def both(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Both]:
    async def nobody(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("no one connects to the HTTP/1 server")

    async with world(nobody) as (made, _):
        pair = Both(made)
        monkeypatch.setattr("exeat.gateway.gates.admission.dial", pair.dial)
        yield pair
        await pair.settle()
        for upstream in pair.upstreams:
            assert upstream.streams == 0
            upstream.close()


def test_a_conversation_with_trailers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with both(monkeypatch) as pair:
            client = pair.client
            fields = [(b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"x-bin", b"\xff\x80")]
            stream = client.request(b"POST", b"/s/M", *fields, end=False)
            await pair.until(lambda: bool(pair.servers) and 1 in pair.server.messages)
            server = pair.server
            assert (server[1].headers or [])[4:] == [
                (b"content-type", b"application/grpc"),
                (b"x-bin", b"\xff\x80"),
                (b"te", b"trailers"),
            ]
            server.h2.send_headers(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
            for number in range(4):
                client.h2.send_data(stream, b"<%d>" % number)
                await pair.until(lambda number=number: server[1].data.endswith(b"<%d>" % number))  # type: ignore[misc]
                server.h2.send_data(1, b"[%d]" % number)
                await pair.until(lambda number=number: client[stream].data.endswith(b"[%d]" % number))  # type: ignore[misc]
            client.h2.end_stream(stream)
            await pair.until(lambda: server[1].ended)
            server.h2.send_headers(1, [(b"grpc-status", b"0"), (b"grpc-message", b"fine")], end_stream=True)
            await pair.until(lambda: client[stream].over)
            assert client[stream].trailers == [(b"grpc-status", b"0"), (b"grpc-message", b"fine")]
            assert (bytes(server[1].data), bytes(client[stream].data)) == (b"<0><1><2><3>", b"[0][1][2][3]")
            assert server[1].trailers is None
            assert (client[stream].reset, server[1].reset) == (None, None)

    run(main)


def test_trailers_only_stays_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with both(monkeypatch) as pair:
            pair.on_request = lambda stream, _: pair.server.h2.send_headers(
                stream, [(b":status", b"200"), (b"grpc-status", b"12")], end_stream=True
            )
            stream = pair.client.request(b"POST", end=False)
            pair.client.h2.send_data(stream, b"x", end_stream=True)
            await pair.until(lambda: pair.client[stream].over)
            heads = [event for event in pair.client.events if isinstance(event, h2.events.ResponseReceived)]
            assert [event.stream_ended is not None for event in heads] == [True]
            assert pair.client[stream].headers == [(b":status", b"200"), (b"grpc-status", b"12")]

    run(main)


def test_a_hundred_streams_share_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with both(monkeypatch) as pair:
            streams = [pair.client.request(b"GET", b"/%d" % number) for number in range(100)]
            await pair.until(lambda: bool(pair.servers) and len(pair.server.messages) >= 100)
            assert len(pair.servers) == 1
            for stream, message in sorted(pair.server.messages.items(), reverse=True):
                path = dict(message.headers or [])[b":path"]
                pair.server.h2.send_headers(stream, [(b":status", b"200")])
                pair.server.h2.send_data(stream, path * 3, end_stream=True)
            await pair.until(lambda: all(pair.client[each].over for each in streams))
            for number, stream in enumerate(streams):
                assert bytes(pair.client[stream].data) == b"/%d" % number * 3

    run(main)


def test_bytes_that_nobody_takes_stop_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download whose client opens no window, and an upload whose server opens none: both wait, whole."""

    async def main() -> None:
        async with both(monkeypatch) as pair:
            client = pair.client
            down, up = client.request(b"GET", b"/down"), client.request(b"POST", b"/up", end=False)
            await pair.until(lambda: bool(pair.servers) and len(pair.server.messages) == 2)
            server = pair.server
            ids = {dict(message.headers or [])[b":path"]: stream for stream, message in server.messages.items()}
            client.acknowledges = server.acknowledges = False
            server.h2.send_headers(ids[b"/down"], [(b":status", b"200")])
            body = b"".join(b"%08x" % number for number in range(256 * 1024))
            sending = [
                asyncio.create_task(server.send_all(ids[b"/down"], body)),
                asyncio.create_task(client.send_all(up, body)),
            ]
            await pair.settle()
            assert not any(each.done() for each in sending)
            assert len(client[down].data) == 65_535
            assert len(server[ids[b"/up"]].data) == 65_535
            for session in pair.made.state.sessions:
                channels = (session.client, session.upstream)
                assert all(each is not None for each in channels)
                for each in channels:
                    assert each is not None
                    assert each.transport.get_write_buffer_size() <= 512 * 1024
                    assert len(each.transport.held) <= STREAM_WINDOW  # type: ignore[attr-defined]
            assert server.h2.local_flow_control_window(ids[b"/down"]) == 0
            assert client.h2.local_flow_control_window(up) == 0
            client.acknowledges = server.acknowledges = True
            client.acknowledge(down)
            server.acknowledge(ids[b"/up"])
            await pair.until(lambda: all(each.done() for each in sending) and client[down].over)
            await pair.until(lambda: server[ids[b"/up"]].ended)
            assert bytes(client[down].data) == body
            assert bytes(server[ids[b"/up"]].data) == body
            server.h2.send_headers(ids[b"/up"], [(b":status", b"201")], end_stream=True)
            await pair.until(lambda: client[up].over)

    run(main)


def test_a_reset_goes_through_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with both(monkeypatch) as pair:
            client = pair.client
            first = client.request(b"POST", end=False)
            await pair.until(lambda: bool(pair.servers) and 1 in pair.server.messages)
            client.h2.reset_stream(first, ErrorCodes.CANCEL)
            await pair.until(lambda: pair.server[1].reset is not None)
            assert pair.server[1].reset == ErrorCodes.CANCEL
            second = client.request()
            await pair.until(lambda: 3 in pair.server.messages)
            pair.server.h2.send_headers(3, [(b":status", b"200")])
            pair.server.h2.send_data(3, b"half")
            await pair.until(lambda: client[second].data == b"half")
            pair.server.h2.reset_stream(3, ErrorCodes.INTERNAL_ERROR)
            await pair.until(lambda: client[second].over)
            assert client[second].reset == ErrorCodes.INTERNAL_ERROR
            third = client.request(b"POST")  # which is not asked twice
            await pair.until(lambda: 5 in pair.server.messages)
            pair.server.h2.reset_stream(5, ErrorCodes.INTERNAL_ERROR)
            await pair.until(lambda: client[third].over)
            assert client[third].status == b"502"

    run(main)


def test_a_request_that_the_server_has_not_looked_at_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """GOAWAY while a request is on its way: it goes to another connection, and its client never knows."""

    async def main() -> None:
        async with both(monkeypatch) as pair:
            pair.on_request = lambda stream, _: pair.server.h2.send_headers(
                stream, [(b":status", b"204")], end_stream=True
            )
            first = pair.client.request()
            await pair.until(lambda: pair.client[first].over)
            pair.servers[0].on_request = None
            second = pair.client.request()
            await pair.until(lambda: 3 in pair.servers[0].messages)
            pair.servers[0].h2.close_connection(last_stream_id=1)
            await pair.until(lambda: pair.client[second].over)
            assert pair.client[second].status == b"204"
            assert len(pair.servers) == 2

    run(main)
