"""Flow control with HTTP/2 clients: whoever is slow holds up no one else, and little is kept for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from h2.settings import SettingCodes

from exeat.gateway.gates.session import Session
from exeat.gateway.http2.link import STREAM_WINDOW
from exeat.gateway.http2.stream import QUEUE_HIGH_BYTES
from tests.support.gateways.http2_peers import Origin, Peer, run, world

MB = 1024 * 1024
# What a stream may have waiting: the mark, and what one read of the upstream may add to it.
MOST_QUEUED = QUEUE_HIGH_BYTES + 256 * 1024


def pattern(size: int) -> bytes:
    """Bytes of which no part looks like another."""
    return b"".join(b"%08x" % number for number in range(size // 8))


async def send_much(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await origin.head(reader)
        if head.startswith(b"GET /small"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall")
            continue
        body = pattern(8 * MB)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 50_000):
            piece = body[at : at + 50_000]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\nx-end: yes\r\n\r\n")


def queued(sessions: Iterable[Session]) -> int:
    """What waits for the client, on the stream that has most of it."""
    return max((session.client.transport.get_write_buffer_size() for session in sessions), default=0)


def small_window(client: Peer, size: int) -> None:
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})


def test_a_large_download_through_small_windows_arrives_whole() -> None:
    async def main() -> None:
        async with world(send_much) as (made, _):
            client = made.client()
            small_window(client, 5_000)
            stream = client.request()
            most = 0

            def done() -> bool:
                nonlocal most
                most = max(most, queued(made.state.sessions))
                return client[stream].over

            await client.until(done)
            assert bytes(client[stream].data) == pattern(8 * MB)
            assert client[stream].trailers == [(b"x-end", b"yes")]
            assert max(client[stream].frames) <= 5_000
            assert 0 < most <= MOST_QUEUED

    run(main)


def test_a_client_that_opens_no_window_holds_up_its_stream_and_nothing_else() -> None:
    async def main() -> None:
        async with world(send_much) as (made, _):
            client = made.client()
            client.h2.increment_flow_control_window(8 * MB)
            client.acknowledges = False
            stuck = client.request()
            await client.settle()
            assert len(client[stuck].data) == 65_535
            assert 0 < queued(made.state.sessions) <= MOST_QUEUED
            upstream = next(iter(made.state.sessions)).upstream
            assert upstream is not None
            assert not upstream.transport.is_reading()
            small = client.request(b"GET", b"/small")
            await client.until(lambda: client[small].over)
            assert bytes(client[small].data) == b"small"
            # Once the window opens it goes on where it was.
            client.acknowledges = True
            client.acknowledge(stuck)
            await client.until(lambda: client[stuck].over)
            assert bytes(client[stuck].data) == pattern(8 * MB)

    run(main)


@pytest.mark.thorough
def test_a_client_that_stops_reading_is_not_read_for() -> None:
    """Windows wide open, but no one takes the bytes: they must not pile up."""

    async def main() -> None:
        async with world(send_much) as (made, _):
            client = made.client()
            client.h2.increment_flow_control_window(64 * MB)
            small_window(client, 64 * MB)
            await client.settle()
            streams = [client.request() for _ in range(4)]
            client.step()
            client.reads = False
            client.pipe.most_unread = 0
            await client.settle(200)
            assert client.pipe.channel.writing_paused
            # The mark, and a batch that went over it.
            assert client.pipe.most_unread <= client.pipe.HIGH + 128 * 1024
            assert queued(made.state.sessions) <= MOST_QUEUED
            client.reads = True
            await client.until(lambda: all(client[each].over for each in streams))
            assert all(bytes(client[each].data) == pattern(8 * MB) for each in streams)

    run(main)


def test_streams_share_the_connection_window() -> None:
    """With a window for one frame at a time, no stream has to wait for another to end."""

    async def main() -> None:
        async with world(send_much) as (made, _):
            client = made.client()
            small_window(client, 16 * MB)
            client.acknowledges = False
            streams = [client.request() for _ in range(4)]
            await client.settle()
            for _ in range(40):
                client.h2.increment_flow_control_window(16_384)
                await client.settle(4)
            amounts = [len(client[each].data) for each in streams]
            assert min(amounts) >= 5 * 16_384
            for each in streams:
                client.h2.reset_stream(each)
            await client.settle()

    run(main)


def test_a_large_upload_to_a_server_that_does_not_read_waits() -> None:
    go = asyncio.Event()
    got = bytearray()

    async def read_late(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await origin.head(reader)
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall")
            return
        await go.wait()
        while len(got) < 16 * MB:
            got.extend(await reader.read(65536))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with world(read_late) as (made, origin):
            client = made.client()
            await client.settle()
            body = pattern(16 * MB)
            stream = client.request(b"PUT", b"/", (b"content-length", b"%d" % len(body)), end=False)
            sending = asyncio.create_task(client.send_all(stream, body))
            await client.until(lambda: len(origin.heads) == 1)
            # Until nothing goes any more: the kernel's buffers are full, then ours, then the window.
            before = -1
            while before != (before := made.sessions[0].client.received):  # noqa: ASYNC110 - it is for the kernel
                await asyncio.sleep(0.1)
            session = next(iter(made.state.sessions))
            upstream = session.upstream
            assert upstream is not None
            assert upstream.writing_paused
            assert upstream.transport.get_write_buffer_size() <= 1 * MB
            assert len(session.client.buffer) <= 64 * 1024 + STREAM_WINDOW
            assert not session.client.transport.is_reading()
            taken = upstream.sent - upstream.transport.get_write_buffer_size()
            assert client.h2.local_flow_control_window(stream) == 0
            assert made.sessions[0].client.received < taken + 2 * MB
            # Another stream is not held up by it.
            small = client.request()
            await client.until(lambda: client[small].over)
            assert client[small].status == b"200"
            go.set()
            await sending
            await client.until(lambda: client[stream].over)
            assert bytes(got) == body
            assert client[stream].status == b"200"

    run(main)


def test_tiny_frames_do_not_cost_more_than_they_carry() -> None:
    """A body in single bytes, to a server that does not read yet: what is kept of it is its payload."""

    async def main() -> None:
        async def never(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await origin.head(reader)
            await asyncio.Event().wait()

        async with world(never) as (made, origin):
            client = made.client()
            await client.settle()
            stream = client.request(b"POST", end=False)
            await client.until(lambda: len(origin.heads) == 1)
            session = next(iter(made.state.sessions))
            session.client.pause_for_peer()
            for _ in range(20_000):
                client.h2.send_data(stream, b"x")
            carrier: Any = session.client.transport
            await client.until(lambda: len(carrier.held) == 20_000)
            assert client.h2.local_flow_control_window(stream) == STREAM_WINDOW - 20_000
            session.client.resume_for_peer()
            await client.settle()
            assert len(carrier.held) == 0
            upstream = session.upstream
            assert upstream is not None
            # One chunk for all of it.
            assert upstream.sent < 20_000 + 400

    run(main)
