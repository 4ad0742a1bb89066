"""Connections of HTTP/2 clients: many streams on one, and how both end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from h2.errors import ErrorCodes

from exeat.gateway.doors.http2 import serve_http2
from exeat.gateway.gates.session import Session
from exeat.sources import make_policy
from tests.support.gateways.http2_peers import HOST, Origin, Peer, Pipe, run, world
from tests.unit.gateway.http2.answering import OK, hello


async def never(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything and never answers."""
    await origin.head(reader)
    while await reader.read(65536):
        pass


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
