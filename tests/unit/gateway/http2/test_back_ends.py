"""Connections to HTTP/2 servers: how they end, what is kept of them, and what a server cannot do to one."""

from __future__ import annotations

import asyncio
import struct

import pytest
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.upload import NotProcessed
from exeat.gateway.http2.back import Http2Upstream
from exeat.gateway.http2.link import STREAM_WINDOW
from exeat.gateway.http2.stream import QUEUE_HIGH_BYTES
from exeat.gateway.limits import Limits
from exeat.gateway.record.counters import Counters
from tests.support.examples import examples
from tests.support.gateways.http2_peers import GET, Message, Pipe, Reader, Server, open_stream, run, upstream
from tests.unit.wire.mutation import Mutation, mutate, mutations

POST = b"POST /a HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nConnection: TE\r\nTE: trailers\r\n\r\n"


def goaway(server: Server, last: int) -> None:
    """GOAWAY by hand: the server's h2 would take it for the end."""
    frame = struct.pack(">I", 8)[1:] + b"\x07\x00" + bytes(4) + struct.pack(">II", last, 0)
    server.pipe.channel.data_received(server.h2.data_to_send() + frame)


def test_goaway_fails_what_the_server_has_not_seen_and_lets_the_rest_finish() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            first, second, unsent = open_stream(made), open_stream(made), Reader(made.open_stream())
            await server.until(lambda: 3 in server.messages)
            goaway(server, 1)
            await asyncio.sleep(0)
            assert not made.usable
            assert isinstance(second.lost[0], NotProcessed)
            assert isinstance(unsent.lost[0], NotProcessed)
            assert first.lost == []
            server.answer(1)
            server.h2.send_data(1, b"last words", end_stream=True)
            server.pipe.channel.data_received(server.h2.data_to_send())
            assert b"last words" in first.text
            assert made.closed
            assert server.pipe.is_closing()
            with pytest.raises(RuntimeError):
                made.open_stream()

    run(main)


@pytest.mark.parametrize("how", ["eof", "lost", "close", "nonsense"])
def test_the_end_of_the_connection_fails_all_streams(how: str) -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            readers = [open_stream(made) for _ in range(3)]
            await server.until(lambda: 5 in server.messages)
            match how:
                case "eof":
                    server.pipe.channel.eof_received()
                case "lost":
                    server.pipe.channel.connection_lost(OSError("gone"))
                case "close":
                    made.close()
                case _:
                    server.pipe.channel.data_received(b"\xff" * 20)
            await asyncio.sleep(0)
            assert [len(reader.lost) for reader in readers] == [1, 1, 1]
            assert all(reader.lost[0] is not None for reader in readers)
            assert (made.usable, made.streams, made.closed) == (False, 0, True)

    run(main)


def test_no_more_streams_than_the_server_takes() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            server.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
            await server.settle()
            first, _ = open_stream(made), open_stream(made)
            assert not made.usable
            await server.until(lambda: 3 in server.messages)
            server.answer(1, end=True)
            await server.until(lambda: made.usable)
            third = made.open_stream()
            # Fewer from now on, though one more was promised.
            server.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
            await server.settle()
            reader = Reader(third)
            third.write(GET)
            await asyncio.sleep(0)
            assert isinstance(reader.lost[0], ConnectionResetError)
            assert b"200" in first.text
            assert not made.closed

    run(main)


def test_a_kept_connection_may_be_asked_again() -> None:
    """An exchange repeats a request only on a channel that another exchange had before."""

    async def main() -> None:
        async with upstream() as (made, _):
            first, second = made.open_stream(), made.open_stream()
            assert (first.is_reused, second.is_reused) == (False, True)

    run(main)


def test_server_push_is_refused() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            assert server.h2.remote_settings.enable_push == 0
            reader = open_stream(made)
            await server.until(lambda: 1 in server.messages)
            frame = struct.pack(">I", 5)[1:] + b"\x05\x04" + struct.pack(">I", 1) + struct.pack(">I", 2) + b"\x82"
            server.pipe.channel.data_received(frame)
            await asyncio.sleep(0)
            assert made.closed
            assert len(reader.lost) == 1

    run(main)


def test_a_server_that_floods_is_left() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            server.reads = False
            for _ in range(50):
                server.pipe.channel.data_received((struct.pack(">I", 8)[1:] + b"\x06" + bytes(13)) * 100)
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)  # some of them are read in each turn
            assert made.closed

    run(main)


def test_a_silent_connection_is_not_used_again() -> None:
    async def main() -> None:
        async with upstream(Limits(connect_s=0.01)) as (made, server):
            alive = open_stream(made)
            await asyncio.sleep(0.02)
            server.pipe.channel.data_received(struct.pack(">I", 8)[1:] + b"\x06" + bytes(13))
            alive.channel.abort()
            assert made.usable
            silent = open_stream(made)
            await asyncio.sleep(0.02)
            silent.channel.abort()
            assert not made.usable

    run(main)


def test_since_when_it_is_idle() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            start = made.idle_since
            await asyncio.sleep(0.01)
            reader = open_stream(made)
            await server.until(lambda: 1 in server.messages)
            server.answer(1, end=True)
            await server.until(lambda: b"200" in reader.text)
            used = made.idle_since
            assert used > start
            await asyncio.sleep(0.01)
            made.open_stream().abort()
            assert made.idle_since > used

    run(main)


def test_a_large_answer_waits_for_its_reader() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader, other = open_stream(made), open_stream(made)
            await server.until(lambda: 3 in server.messages)
            reader.channel.pause_for_peer()
            server.answer(1)
            body = b"".join(b"%08x" % number for number in range(512 * 1024))
            sending = asyncio.create_task(server.send_all(1, body))
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert server.h2.local_flow_control_window(1) == 0
            assert len(reader.channel.transport.held) == STREAM_WINDOW  # type: ignore[attr-defined]
            # The other stream goes on.
            server.answer(3, end=True)
            await server.until(lambda: b"200" in other.text)
            reader.channel.resume_for_peer()
            await sending
            await server.until(lambda: reader.text.endswith(b"0\r\n\r\n"))
            from exeat.wire.body import ChunkedBody

            decoder = ChunkedBody()
            payload = decoder.feed(reader.text.partition(b"\r\n\r\n")[2])
            while decoder.is_behind:
                payload += decoder.feed(b"")
            assert b"".join(payload) == body

    run(main)


def test_a_large_request_waits_for_the_server() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            server.acknowledges = False
            reader = open_stream(made, b"PUT / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 8388608\r\n\r\n")
            channel = reader.channel
            body = b"".join(b"%08x" % number for number in range(1024 * 1024))
            at = 0
            while not channel.writing_paused:
                channel.write(body[at : at + 10_000])
                at += 10_000
            await server.settle()
            assert len(server[1].data) == 65_535
            assert channel.writing_paused
            assert channel.transport.get_write_buffer_size() <= QUEUE_HIGH_BYTES + 10_000
            server.acknowledges = True
            server.acknowledge(1)
            while at < len(body):
                await server.until(lambda: not channel.writing_paused)
                channel.write(body[at : at + 10_000])
                at += 10_000
            await server.until(lambda: server[1].ended)
            assert bytes(server[1].data) == body

    run(main)


def test_it_works_over_a_socket() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Server(Pipe(loop))

        def answer(stream: int, message: Message) -> None:
            server.answer(stream, (b"content-length", b"2"))
            server.h2.send_data(stream, b"ok", end_stream=True)

        server.on_request = answer

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                for event in server.h2.receive_data(data):
                    server._take(event)
                writer.write(server.h2.data_to_send())
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        _, channel = await loop.create_connection(lambda: Channel(loop), "127.0.0.1", port)
        made = Http2Upstream(channel, Limits(), Counters())
        made.start()
        readers = [open_stream(made) for _ in range(100)]
        assert not made.usable
        async with asyncio.timeout(10):
            while made.streams:  # noqa: ASYNC110 - what is waited for is the kernel
                await asyncio.sleep(0.005)
        assert all(reader.text.endswith(b"\r\n\r\nok") for reader in readers)
        assert made.usable
        made.close()
        listening.close()
        await asyncio.sleep(0.01)
        assert channel.closed

    run(main)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=mutations([b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\0", b"\0\0\0\x01\x05\0\0\0\x03"], max_size=6))
def test_damaged_bytes_never_show_a_defect(changes: list[Mutation]) -> None:
    """And every exchange hears of its end, or has its whole answer."""
    defects: list[Exception] = []

    async def main() -> None:
        async with upstream() as (made, server):
            made.report_defect = defects.append  # type: ignore[method-assign, assignment]
            readers = [open_stream(made), open_stream(made, POST), open_stream(made)]
            await server.until(lambda: 5 in server.messages)
            server.answer(1, (b"content-length", b"5"), (b"x", b"y" * 40))
            server.h2.send_data(1, b"hello", end_stream=True)
            server.answer(3, status=b"103")
            server.answer(3)
            server.h2.send_data(3, b"piece", pad_length=5)
            server.h2.send_headers(3, [(b"grpc-status", b"0")], end_stream=True)
            server.h2.ping(bytes(8))
            server.answer(5, status=b"204", end=True)
            server.pipe.channel.data_received(mutate(server.h2.data_to_send(), changes))
            server.pipe.channel.eof_received()
            for _ in range(5):
                await asyncio.sleep(0)
            assert made.streams == 0
            for reader in readers:
                assert reader.lost or b"\r\n\r\n" in reader.text

    run(main)
    assert defects == []
