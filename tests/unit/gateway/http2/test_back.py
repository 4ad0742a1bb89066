"""HTTP/2 servers: an exchange writes HTTP/1.1 text to a stream's channel and reads HTTP/1.1 text from it."""

from __future__ import annotations

import asyncio
import struct

import pytest
from h2.errors import ErrorCodes
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
from tests.support.gateways.http2_peers import GET, Headers, Message, Pipe, Reader, Server, open_stream, run, upstream
from tests.unit.wire.mutation import Mutation, mutate, mutations

POST = b"POST /a HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nConnection: TE\r\nTE: trailers\r\n\r\n"


def test_a_request_and_its_answer() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made)
            await server.until(lambda: bool(server.messages.get(1)))
            assert server.asked(1) == [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":authority", b"good.test:444"),
                (b":path", b"/a"),
                (b"accept", b"*/*"),
                (b"x-api-key", b"k"),
            ]
            assert server[1].ended
            assert made.streams == 1
            server.answer(1, (b"content-length", b"5"), (b"x-a", b"b"))
            server.h2.send_data(1, b"hello", end_stream=True)
            await server.until(lambda: reader.text.endswith(b"hello"))
            assert reader.text == (b"HTTP/1.1 200 \r\nx-a: b\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
            assert made.streams == 0
            reader.channel.abort()
            await server.settle()
            assert server[1].reset is None
            assert made.usable

    run(main)


def test_the_fields_of_this_hop_stay_here() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            open_stream(
                made,
                b"POST / HTTP/1.1\r\nHost: good.test\r\nConnection: TE, close\r\nTE: trailers, gzip\r\n"
                b"Keep-Alive: 1\r\n"
                b"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: close\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
                b"Expect: 100-continue\r\nContent-Length: 3\r\nX-A: b\r\n\r\n",
            )
            await server.until(lambda: 1 in server.messages)
            assert server.asked(1)[4:] == [
                (b"x-a", b"b"),
                (b"content-length", b"3"),
                (b"te", b"trailers"),
                (b"expect", b"100-continue"),
            ]
            assert not server[1].ended

    run(main)


def test_both_directions_stream_and_end_in_trailers() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, POST)
            await server.until(lambda: 1 in server.messages)
            assert (b"te", b"trailers") in server.asked(1)
            server.answer(1, (b"content-type", b"application/grpc"))
            await server.until(lambda: reader.text.endswith(b"\r\n\r\n"))
            for number in range(3):
                reader.channel.write(b"3\r\nup%d\r\n" % number)
                await server.until(lambda number=number: bytes(server[1].data).endswith(b"%d" % number))  # type: ignore[misc]
                server.h2.send_data(1, b"down%d" % number)
                await server.until(lambda number=number: reader.text.endswith(b"5\r\ndown%d\r\n" % number))  # type: ignore[misc]
            reader.channel.write(b"0\r\nX-Up: 1\r\n\r\n")
            await server.until(lambda: server[1].ended)
            assert server[1].trailers == [(b"x-up", b"1")]
            server.h2.send_headers(1, [(b"grpc-status", b"0")], end_stream=True)
            await server.until(lambda: reader.text.endswith(b"\r\n0\r\ngrpc-status: 0\r\n\r\n"))
            head, _, _ = reader.text.partition(b"\r\n\r\n")
            assert b"\r\ntransfer-encoding: chunked\r\nconnection: close" in head
            assert made.streams == 0

    run(main)


def test_an_answer_that_ends_with_its_head_comes_in_one_piece() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            pieces: list[bytes] = []
            reader = Reader(made.open_stream())
            reader.on_data = pieces.append  # type: ignore[method-assign, assignment]
            reader.channel.push_to(reader)
            reader.channel.write(POST + b"0\r\n\r\n")
            await server.until(lambda: server[1].ended)
            server.answer(1, (b"grpc-status", b"5"), end=True)
            await server.until(lambda: bool(pieces))
            assert pieces == [
                b"HTTP/1.1 200 \r\ngrpc-status: 5\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\n"
            ]

    run(main)


@pytest.mark.parametrize(
    ("method", "status", "fields", "expected"),
    [
        (b"HEAD", b"200", [(b"content-length", b"5")], b"HTTP/1.1 200 \r\ncontent-length: 5\r\n"),
        (b"GET", b"204", [], b"HTTP/1.1 204 \r\n"),
        (b"GET", b"304", [(b"content-length", b"5")], b"HTTP/1.1 304 \r\ncontent-length: 5\r\n"),
        (b"GET", b"200", [(b"content-length", b"0")], b"HTTP/1.1 200 \r\ncontent-length: 0\r\n"),
    ],
)
@pytest.mark.parametrize("ends_later", [False, True])
def test_answers_without_a_body(
    method: bytes, status: bytes, fields: Headers, expected: bytes, ends_later: bool
) -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, GET.replace(b"GET", method))
            await server.until(lambda: 1 in server.messages)
            server.answer(1, *fields, status=status, end=not ends_later)
            if ends_later:
                server.h2.end_stream(1)
            await server.settle()
            assert reader.text == expected + b"connection: close\r\n\r\n"
            assert made.streams == 0

    run(main)


def test_interim_answers() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, POST)
            await server.until(lambda: 1 in server.messages)
            server.answer(1, status=b"100")
            server.answer(1, (b"link", b"</x>"), status=b"103")
            await server.until(lambda: b"103" in reader.text)
            assert reader.text == b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 103 \r\nlink: </x>\r\n\r\n"

    run(main)


@pytest.mark.parametrize(
    "headers",
    [
        [(b":status", b"200"), (b"x", b"a\r\nset-cookie: evil=1")],
        [(b":status", b"200"), (b"x", b"a\0")],
        [(b":status", b"200"), (b"x\r\ny", b"a")],
        [(b":status", b"200"), (b"X", b"a")],
        [(b":status", b"200"), (b"x y", b"a")],
        [(b":status", b"200"), (b"connection", b"keep-alive")],
        [(b":status", b"200"), (b"transfer-encoding", b"chunked")],
        [(b":status", b"200"), (b"content-length", b"1"), (b"content-length", b"1")],
        [(b":status", b"200"), (b"content-length", b"-1")],
        [(b":status", b"200 OK")],
        [(b":status", b"2")],
        [(b":status", b"999")],
        [(b":status", b"101")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b":status", b"200"), (b":path", b"/")],
        [(b"x", b"y")],
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_malformed_answer_fails_its_stream_and_no_other(headers: Headers, ended: bool) -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            good, bad = open_stream(made), open_stream(made)
            await server.until(lambda: 3 in server.messages)
            server.h2.send_headers(3, headers, end_stream=ended and headers[0][1] != b"101")
            await server.until(lambda: bool(bad.lost))
            await server.settle(5)
            assert isinstance(bad.lost[0], ConnectionError)
            assert ended or server[3].reset == ErrorCodes.PROTOCOL_ERROR
            assert bad.text == b""
            server.answer(1, end=True)
            await server.until(lambda: b"200" in good.text)
            assert good.lost == []
            assert made.usable

    run(main)


@pytest.mark.parametrize("body", [b"1234", b"123456"])
@pytest.mark.parametrize("with_trailers", [False, True])
def test_a_body_of_another_length_fails_its_stream(body: bytes, with_trailers: bool) -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made)
            await server.until(lambda: 1 in server.messages)
            server.answer(1, (b"content-length", b"5"))
            server.h2.send_data(1, body, end_stream=not with_trailers)
            if with_trailers:
                server.h2.send_headers(1, [(b"x", b"y")], end_stream=True)
            await server.until(lambda: bool(reader.lost))
            assert isinstance(reader.lost[0], ConnectionError)
            assert len(reader.text.partition(b"\r\n\r\n")[2]) < 5
            assert made.usable
            await server.settle()
            assert server.h2.outbound_flow_control_window >= 100 * STREAM_WINDOW - len(body)

    run(main)


def test_malformed_answers_cost_the_connection_no_window() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            for number in range(1000):
                stream = 2 * number + 1
                open_stream(made)
                await server.until(lambda stream=stream: stream in server.messages)  # type: ignore[misc]
                server.answer(stream, (b"content-length", b"5"))
                server.h2.send_data(stream, bytes(16_384))
                server.step()
            await server.settle()
            assert made.streams == 0
            assert server.h2.outbound_flow_control_window > 100 * STREAM_WINDOW - 1000 * 16_384

    run(main)


def test_a_server_that_resets_a_stream() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            first, second = open_stream(made), open_stream(made)
            await server.until(lambda: 3 in server.messages)
            server.h2.reset_stream(1, ErrorCodes.REFUSED_STREAM)
            server.answer(3, end=True)
            await server.until(lambda: bool(first.lost) and b"200" in second.text)
            assert isinstance(first.lost[0], NotProcessed)
            assert second.lost == []
            third = open_stream(made)
            await server.until(lambda: 5 in server.messages)
            server.h2.reset_stream(5, ErrorCodes.CANCEL)
            await server.until(lambda: bool(third.lost))
            assert isinstance(third.lost[0], ConnectionResetError)
            assert not isinstance(third.lost[0], NotProcessed)  # it may have been

    run(main)


def test_a_defect_is_counted() -> None:
    """Text that an exchange never writes, for example."""

    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, b"nonsense\r\n\r\n")
            await asyncio.sleep(0)
            assert reader.lost
            assert made.counters.internal_errors == 1
            assert made.usable
            assert not server.messages

    run(main)


def test_an_answer_before_the_end_of_the_request_is_whole() -> None:
    """The server answers and then says that it wants no more of the request."""

    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, POST + b"3\r\nabc\r\n")
            reader.channel.pause_for_peer()  # whoever reads the answer is slow
            await server.until(lambda: bytes(server[1].data) == b"abc")
            server.answer(1, status=b"413")
            server.h2.send_data(1, b"too much", end_stream=True)
            server.h2.reset_stream(1, ErrorCodes.NO_ERROR)
            await server.settle()
            reader.channel.write(b"3\r\ndef\r\n")
            assert reader.text.endswith(b"\r\n\r\n")
            reader.channel.resume_for_peer()
            await server.until(lambda: reader.text.endswith(b"8\r\ntoo much\r\n0\r\n\r\n"))
            assert reader.lost == []
            assert bytes(server[1].data) == b"abc"

    run(main)


def test_what_is_given_up_is_cancelled() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made, POST)
            await server.until(lambda: 1 in server.messages)
            server.answer(1)
            server.h2.send_data(1, b"some")
            await server.until(lambda: b"some" in reader.text)
            reader.channel.abort()
            await server.until(lambda: server[1].reset is not None)
            assert server[1].reset == ErrorCodes.CANCEL
            assert (made.streams, made.usable) == (0, True)
            await asyncio.sleep(0)
            assert reader.channel.closed
            # What was on its way is taken off the connection's window again.
            unsent = made.open_stream()
            unsent.abort()
            assert made.streams == 0

    run(main)


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
