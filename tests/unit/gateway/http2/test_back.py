"""HTTP/2 servers: an exchange writes HTTP/1.1 text to a stream's channel and reads HTTP/1.1 text from it."""

from __future__ import annotations

import asyncio

import pytest
from h2.errors import ErrorCodes

from exeat.gateway.flow.upload import NotProcessed
from exeat.gateway.http2.link import STREAM_WINDOW
from tests.support.gateways.http2_peers import GET, Headers, Reader, open_stream, run, upstream

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
