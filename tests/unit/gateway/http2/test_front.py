"""HTTP/2 clients: each stream goes through the HTTP/1 core and comes back as frames."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import h2.events
import pytest
from h2.errors import ErrorCodes

from exeat.gateway.doors.http2 import serve_http2
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.session import Session
from exeat.sources import make_policy
from tests.support.gateways.http2_peers import HOST, Origin, Peer, Pipe, read_chunked, run, world

Handler = Callable[[Origin, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: Value\r\n\r\nhello"


def answering(response: bytes) -> Handler:
    """Answers each request, none of which may have a body, with these bytes."""

    async def handle(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await origin.head(reader)
            writer.write(response)

    return handle


hello = answering(OK)


async def never(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything and never answers."""
    await origin.head(reader)
    while await reader.read(65536):
        pass


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


def test_cookie_crumbs_are_joined() -> None:
    async def main() -> None:
        async with world(hello) as (made, origin):
            client = made.client()
            stream = client.request(b"GET", b"/", (b"cookie", b"a=1"), (b"x-a", b"b"), (b"cookie", b"b=2"))
            await client.until(lambda: client[stream].over)
            assert b"cookie: a=1; b=2\r\n" in origin.heads[0]
            assert origin.heads[0].count(b"cookie") == 1

    run(main)


def test_requests_are_numbered_over_the_whole_connection(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with world(hello, audit=audit) as (made, _):
            client = made.client()
            streams = [client.request(b"GET", b"/%d" % number) for number in range(3)]
            bad = client.request(b"GET", b"no-path")
            await client.until(lambda: all(client[each].over for each in (*streams, bad)))

    run(main)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    decisions = [line for line in lines if line["event"] == "decision"]
    assert sorted(line["req"] for line in decisions) == [1, 2, 3, 4]
    assert {line["conn"] for line in decisions} == {1}
    malformed = [line for line in decisions if line["reason"] == "malformed"]
    assert [(line["host"], line["protocol"], line["verdict"]) for line in malformed] == [
        (HOST.decode(), "connect/h2", "deny")
    ]
    assert len([line for line in lines if line["event"] == "end"]) == 3


def test_a_hundred_streams_at_once() -> None:
    async def meet(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        while len(origin.heads) < 100:  # noqa: ASYNC110 - all of them have to be there at once
            await asyncio.sleep(0.005)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + origin.heads[-1][:20] * 1000)

    async def main() -> None:
        async with world(meet) as (made, _):
            client = made.client()
            streams = [client.request(b"GET", b"/%d" % number) for number in range(100)]
            await client.until(lambda: all(client[each].over for each in streams))
            assert {client[each].status for each in streams} == {b"200"}
            assert {len(client[each].data) for each in streams} == {20_000}
            await client.until(lambda: not made.state.sessions)

    run(main)


def test_a_client_that_resets_a_stream_ends_its_exchange(tmp_path: Path) -> None:
    left: list[bool] = []

    async def wait(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        left.append(await reader.read() == b"")

    audit = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with world(wait, audit=audit) as (made, origin):
            client = made.client()
            stream = client.request()
            await client.until(lambda: len(origin.heads) == 1)
            client.h2.reset_stream(stream, ErrorCodes.CANCEL)
            await client.until(lambda: bool(left) and not made.state.sessions)
            assert client.goaway is None

    run(main)
    ends = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "end"]
    assert [line["note"] for line in ends] == ["client-left"]


def test_a_policy_change_cuts_the_streams_it_denies() -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            stream = client.request()
            await client.until(lambda: len(origin.heads) == 1)
            cut = await made.gateway.set_policy(make_policy([]))
            assert cut == 1
            await client.until(lambda: client[stream].over)
            assert client[stream].status == b"503"

    run(main)


def test_draining_lets_the_streams_finish_and_takes_no_more() -> None:
    go = asyncio.Event()

    async def wait(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        await go.wait()
        writer.write(OK)

    async def main() -> None:
        async with world(wait) as (made, origin):
            client = made.client()
            # h2 forgets a connection that has said goodbye: what comes then is looked at as frames.
            stream = client.request()
            await client.until(lambda: len(origin.heads) == 1)
            made.sessions[0].drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            late = client.request()
            client.pipe.channel.data_received(client.h2.data_to_send())
            go.set()
            await asyncio.wait_for(made.tasks[0], 10)
            kinds = frames(bytes(client.pipe.sent))
            assert kinds[0] == ("GOAWAY", 0)
            assert ("RST_STREAM", late) in kinds
            assert [kind for kind in kinds if kind[1] == stream] == [("HEADERS", stream), ("DATA", stream)]
            assert len(origin.heads) == 1
            assert client.pipe.is_closing()

    run(main)


def frames(data: bytes) -> list[tuple[str, int]]:
    """The frames in `data`: kind and stream."""
    names = {0: "DATA", 1: "HEADERS", 3: "RST_STREAM", 7: "GOAWAY"}
    found, at = [], 0
    while at < len(data):
        found.append((names.get(data[at + 3], "other"), int.from_bytes(data[at + 5 : at + 9], "big")))
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return found


def test_an_idle_connection_is_closed_with_a_goodbye() -> None:
    async def main() -> None:
        async with world(hello) as (made, _):
            client = made.client()
            stream = client.request()
            await client.until(lambda: client[stream].over)
            session = made.sessions[0]
            now = asyncio.get_running_loop().time()
            session.check(now + made.state.limits.keep_alive_s - 5)
            await client.settle()
            assert client.goaway is None
            session.check(now + made.state.limits.keep_alive_s + 5)
            await client.until(made.tasks[0].done)
            client.step()
            assert client.goaway == (ErrorCodes.NO_ERROR, stream)

    run(main)


def test_a_connection_with_a_stream_is_not_idle_but_the_stream_has_limits() -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            stream = client.request()
            await client.until(lambda: len(origin.heads) == 1)
            now = asyncio.get_running_loop().time()
            made.sessions[0].check(now + 10_000)
            for session in list(made.state.sessions):
                session.check(now)
                session.check(now + made.state.limits.response_s + 5)
            await client.until(lambda: client[stream].over)
            assert client[stream].status == b"504"
            assert client.goaway is None

    run(main)


def test_the_end_of_the_connection_ends_all_streams() -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            for _ in range(3):
                client.request()
            await client.until(lambda: len(origin.heads) == 3)
            client.pipe.channel.eof_received()
            await asyncio.wait_for(made.tasks[0], 10)
            await asyncio.sleep(0)
            assert not made.state.sessions

    run(main)


def test_a_cancelled_connection_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            client.request()
            await client.until(lambda: len(origin.heads) == 1)
            made.tasks[0].cancel()
            await asyncio.wait(made.tasks)
            assert made.tasks[0].cancelled()
            await client.until(lambda: not made.state.sessions)

    run(main)


def test_cancelling_a_connection_cancels_what_waits_for_something_else() -> None:
    """A stream's task may be anywhere, resolving a name for example, where the loss of its channel is not seen."""
    ended: list[str] = []

    async def stuck(session: Session) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        async with world(never) as (made, _):
            pipe = Pipe(asyncio.get_running_loop())
            task = asyncio.create_task(serve_http2(Session(made.state, pipe.channel, 1), stuck))
            client = Peer(pipe, client=True)
            client.request()
            await client.until(lambda: len(made.state.sessions) == 1)
            await client.settle()
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
            assert ended == ["cancelled"]

    run(main)


def test_a_defect_in_one_stream_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(hello) as (made, _):

            async def serve(session: Session) -> None:
                if b"/bad" in session.client.buffer:
                    raise ValueError("a defect")
                session.client.write(OK)

            pipe = Pipe(asyncio.get_running_loop())
            session = Session(made.state, pipe.channel, 1)
            task = asyncio.create_task(serve_http2(session, serve))
            client = Peer(pipe, client=True)
            bad, good = client.request(b"GET", b"/bad"), client.request()
            await client.until(lambda: client[bad].over and client[good].over)
            assert client[bad].reset == ErrorCodes.INTERNAL_ERROR
            assert client[good].status == b"200"
            assert made.state.counters.internal_errors == 1
            made.state.counters.internal_errors = 0
            client.pipe.channel.eof_received()
            await asyncio.wait([task], timeout=5)
            assert task.done()

    run(main)
    assert "connection 1 failed" in caplog.text
