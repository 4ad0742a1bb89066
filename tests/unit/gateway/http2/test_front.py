"""HTTP/2 clients: each stream goes through the HTTP/1 core and comes back as frames."""

from __future__ import annotations

import asyncio

import h2.events
import pytest
from h2.errors import ErrorCodes

from exeat.gateway.flow.channel import Channel
from tests.support.gateways.http2_peers import Origin, Peer, Pipe, read_chunked, run, world
from tests.unit.gateway.http2.answering import OK, answering, hello


def test_a_request_is_answered() -> None:
    async def main() -> None:
        async with world(hello) as (made, origin):
            client = made.client()
            stream = client.request(b"GET", b"/a?b=c", (b"accept", b"*/*"))
            await client.until(lambda: client[stream].over)
            message = client[stream]
            assert (message.status, bytes(message.data), message.ended) == (b"200", b"hello", True)
            assert message.headers == [(b":status", b"200"), (b"content-length", b"5"), (b"x-name", b"Value")]
            assert origin.heads[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: good.test:%d\r\naccept: */*" % origin.port)

    run(main)


def test_it_works_over_a_socket_and_in_single_bytes() -> None:
    """How the bytes arrive changes nothing, and the channel may be any."""

    async def main() -> None:
        async with world(hello) as (made, _):
            loop = asyncio.get_running_loop()

            def accept(channel: Channel) -> None:
                made.serve(channel)

            server = await loop.create_server(lambda: Channel(loop, accept), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
            peer = Peer(Pipe(loop), client=True)
            streams = [peer.request(), peer.request(b"HEAD")]
            for byte in peer.h2.data_to_send():
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            events: list[h2.events.Event] = []
            async with asyncio.timeout(10):
                while sum(isinstance(event, h2.events.StreamEnded) for event in events) < 2:
                    events += peer.h2.receive_data(await reader.read(65536))
            data = [event.data for event in events if isinstance(event, h2.events.DataReceived)]
            assert data == [b"hello"]
            assert {event.stream_id for event in events if isinstance(event, h2.events.StreamEnded)} == set(streams)
            writer.close()
            server.close()

    run(main)


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"200", b""),  # to HEAD, see below
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"204", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n", b"304", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"200", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nGrpc-Status: 5\r\n\r\n0\r\n\r\n", b"200", b""),
    ],
)
def test_a_response_that_ends_with_its_head_is_one_frame(response: bytes, status: bytes, body: bytes) -> None:
    async def main() -> None:
        async with world(answering(response)) as (made, _):
            client = made.client()
            is_head = response.endswith(b"Content-Length: 5\r\n\r\n") and status == b"200"
            stream = client.request(b"HEAD" if is_head else b"GET")
            await client.until(lambda: client[stream].over)
            assert (client[stream].status, client[stream].frames) == (status, [])
            heads = [event for event in client.events if isinstance(event, h2.events.ResponseReceived)]
            assert [event.stream_ended is not None for event in heads] == [True]
            names = [name for name, _ in client[stream].headers or []]
            assert not {b"transfer-encoding", b"connection", b"keep-alive"}.intersection(names)

    run(main)


@pytest.mark.parametrize(
    ("framing", "expected"),
    [
        ((b"content-length", b"10"), b"Content-Length: 10\r\n"),
        ((b"x-nothing", b""), b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_body_goes_up_in_the_framing_it_has(framing: tuple[bytes, bytes], expected: bytes) -> None:
    bodies: list[tuple[bytes, bytes]] = []

    async def take(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await origin.head(reader)
        bodies.append(await read_chunked(reader) if b"chunked" in head else (await reader.readexactly(10), b""))
        writer.write(OK)

    async def main() -> None:
        async with world(take) as (made, origin):
            client = made.client()
            stream = client.request(b"POST", b"/", framing, end=False)
            client.h2.send_data(stream, b"01234", pad_length=7)
            await client.settle()
            client.h2.send_data(stream, b"56789")
            client.h2.send_headers(stream, [(b"x-checksum", b"abc")], end_stream=True)
            await client.until(lambda: client[stream].over)
            assert client[stream].status == b"200"
            assert client[stream].reset is None
            assert expected in origin.heads[0]
            # Behind a counted body HTTP/1 has no place for trailers.
            assert bodies == [(b"0123456789", b"x-checksum: abc\r\n" if b"chunked" in expected else b"")]

    run(main)


def test_a_post_without_a_body_says_so() -> None:
    async def main() -> None:
        async with world(hello) as (made, origin):
            client = made.client()
            streams = [client.request(b"POST"), client.request(b"GET")]
            await client.until(lambda: all(client[each].over for each in streams))
            assert {head[:4]: b"Content-Length: 0" in head for head in origin.heads} == {b"POST": True, b"GET ": False}
            assert not any(b"chunked" in head for head in origin.heads)

    run(main)


def test_both_directions_stream_at_once_and_end_in_trailers() -> None:
    """What gRPC does: each message is answered while the request goes on."""

    async def echo(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await origin.head(reader)
        assert b"TE: trailers" in head
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n")
        while size := int(await reader.readline(), 16):
            piece = (await reader.readexactly(size + 2))[:-2]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece.upper()))
        writer.write(b"0\r\ngrpc-status: 0\r\n\r\n")

    async def main() -> None:
        async with world(echo) as (made, _):
            client = made.client()
            stream = client.request(b"POST", b"/s/Chat", (b"te", b"trailers"), end=False)
            await client.until(lambda: client[stream].headers is not None)
            for number in range(5):
                client.h2.send_data(stream, b"message %d." % number)
                await client.until(lambda number=number: bytes(client[stream].data).endswith(b"%d." % number))  # type: ignore[misc]
            assert not client[stream].ended
            client.h2.end_stream(stream)
            await client.until(lambda: client[stream].over)
            assert bytes(client[stream].data) == b"".join(b"MESSAGE %d." % number for number in range(5))
            assert client[stream].trailers == [(b"grpc-status", b"0")]
            assert client[stream].reset is None

    run(main)


def test_interim_responses_come_as_such() -> None:
    async def ask_on(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(OK)

    async def main() -> None:
        async with world(ask_on) as (made, origin):
            client = made.client()
            stream = client.request(b"PUT", b"/", (b"content-length", b"4"), (b"expect", b"100-continue"), end=False)
            await client.until(lambda: len(client[stream].interim) == 2)
            assert b"Expect: 100-continue" in origin.heads[0]
            client.h2.send_data(stream, b"body", end_stream=True)
            await client.until(lambda: client[stream].over)
            assert client[stream].interim == [[(b":status", b"103"), (b"link", b"</x>")], [(b":status", b"100")]]
            assert client[stream].status == b"200"

    run(main)


def test_a_response_that_ends_with_its_connection_ends_the_stream() -> None:
    async def close_after(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    async def main() -> None:
        async with world(close_after) as (made, _):
            client = made.client()
            stream = client.request()
            await client.until(lambda: client[stream].over)
            assert (bytes(client[stream].data), client[stream].ended) == (b"all of it", True)

    run(main)


def test_half_an_answer_is_a_reset() -> None:
    async def break_off(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async def main() -> None:
        async with world(break_off) as (made, _):
            client = made.client()
            stream = client.request()
            await client.until(lambda: client[stream].over)
            assert client[stream].reset == ErrorCodes.INTERNAL_ERROR
            assert not client[stream].ended

    run(main)


def test_refusals_of_our_own_are_answers() -> None:
    async def main() -> None:
        async with world(hello, rules=("{host}:{port} private methods=GET",)) as (made, origin):
            client = made.client()
            denied = client.request(b"DELETE")
            elsewhere = client.send(
                [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"evil.test"), (b":path", b"/")]
            )
            unknown = client.request(b"BREW")
            traced = client.request(b"TRACE")
            allowed = client.request()
            streams = [denied, elsewhere, unknown, traced, allowed]
            await client.until(lambda: all(client[each].over for each in streams))
            assert [client[each].status for each in streams] == [b"403", b"421", b"400", b"405", b"200"]
            assert b"good.test" in client[denied].data
            assert len(origin.heads) == 1

    run(main)


def test_an_answer_before_the_end_of_the_body_stops_the_upload() -> None:
    async def main() -> None:
        async with world(hello, rules=()) as (made, _):
            client = made.client()
            stream = client.request(b"POST", end=False)
            await client.until(lambda: client[stream].reset is not None)
            assert (client[stream].status, client[stream].ended) == (b"403", True)
            assert client[stream].reset == ErrorCodes.NO_ERROR
            # What was sent before that was heard of does no harm.
            again = client.request(b"POST", end=False)
            client.h2.send_data(again, b"x" * 1000)
            await client.until(lambda: client[again].reset is not None)
            assert client.goaway is None

    run(main)


def test_an_answer_before_the_last_empty_frame_is_no_reason_for_a_reset() -> None:
    """All of the body has come, as its length tells; only the frame that says so is still on its way."""

    async def take(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        await reader.readexactly(4)
        writer.write(OK)

    async def main() -> None:
        async with world(take) as (made, _):
            client = made.client()
            streams = [client.request(b"PUT", b"/", (b"content-length", b"4"), end=False) for _ in range(2)]
            for stream in streams:
                client.h2.send_data(stream, b"body")
            await client.until(lambda: all(client[each].ended for each in streams))
            await client.settle()
            assert len(made.state.sessions) == 2
            client.h2.end_stream(streams[0])
            await client.until(lambda: len(made.state.sessions) == 1)
            # The other never sends it: time ends that.
            (session,) = made.state.sessions
            session.check(asyncio.get_running_loop().time() + made.state.limits.keep_alive_s + 5)
            await client.until(lambda: not made.state.sessions)
            assert [client[each].reset for each in streams] == [None, ErrorCodes.NO_ERROR]

    run(main)
