"""HTTP/2 clients that send without end, or what is broken: their connection is ended, and costs little until then."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings

from exeat.gateway.limits import Limits
from tests.support.examples import examples
from tests.support.gateways.http2_peers import Origin, run, world
from tests.unit.gateway.http2.servers import hello_after_body, never
from tests.unit.wire.mutation import Mutation, mutate, mutations

pytestmark = pytest.mark.threat("T-C8")


async def hello(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await origin.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def test_resets_of_answered_streams_are_no_attack() -> None:
    async def main() -> None:
        async with world(hello, rules=()) as (made, _):
            client = made.client()
            for _ in range(300):
                stream = client.request()
                await client.until(lambda stream=stream: client[stream].over)  # type: ignore[misc]
                client.pipe.channel.data_received(_frame(3, 0, stream, bytes(4)))
            await client.settle()
            assert client.goaway is None

    run(main)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (_frame(6, 0, 0, bytes(8)), "PING"),
        (_frame(4, 0, 0, b""), "SETTINGS"),
        (_frame(4, 0, 0, struct.pack(">HI", 4, 65535)), "SETTINGS with a window"),
        (_frame(0, 0, 1, b""), "empty DATA"),
        (_frame(2, 0, 1, struct.pack(">IB", 0, 16)), "PRIORITY"),
        (_frame(8, 0, 1, struct.pack(">I", 1)), "WINDOW_UPDATE"),
        (_frame(0xFA, 0, 0, b""), "an unknown frame"),
        (_frame(3, 0, 1, bytes(4)), "RST_STREAM"),
    ],
)
def test_floods_of_frames_that_carry_nothing_end_the_connection(frame: bytes, name: str) -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            client.request(b"POST", end=False)
            await client.until(lambda: len(origin.heads) == 1)
            client.step()
            client.reads = False
            for _ in range(100):
                if made.tasks[0].done():
                    break
                client.pipe.channel.data_received(frame * 100)
                for _ in range(3):
                    await asyncio.sleep(0)
            assert made.tasks[0].done()
            assert client.pipe.most_unread < 128 * 1024
            sent = bytes(client.pipe.sent)
            assert _frame(7, 0, 0, struct.pack(">II", 1, ErrorCodes.ENHANCE_YOUR_CALM)) in sent

    run(main)


@pytest.mark.parametrize("is_heard", [True, False])
def test_time_makes_up_for_pings_only_if_the_answers_are_read(is_heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exeat.gateway.http2.frames._CHATTER_PER_S", 1e9)

    async def main() -> None:
        async with world(never) as (made, _):
            client = made.client()
            await client.settle()
            if not is_heard:
                client.reads = False
                client.pipe.channel.pause_writing()
            for _ in range(60):
                client.pipe.channel.data_received(_frame(6, 0, 0, bytes(8)) * 100)
                await client.settle(5)
                if made.tasks[0].done():
                    break
            assert made.tasks[0].done() is not is_heard

    run(main)


def test_a_flood_does_not_keep_the_loop() -> None:
    """However much comes at once, others have their turn in between."""

    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            stream = client.request(b"POST", end=False)
            await client.until(lambda: len(origin.heads) == 1)
            turns = 0
            for _ in range(3000):
                client.h2.send_data(stream, b"x")
            client.pipe.channel.data_received(client.h2.data_to_send())
            assert not client.pipe.reading
            while not client.pipe.reading:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 3000 // 128
            assert client.goaway is None

    run(main)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_frame(9, 4, 1, b"\x82"), ErrorCodes.PROTOCOL_ERROR),  # CONTINUATION of nothing
        (_frame(1, 0, 1, b"\x82") + _frame(6, 0, 0, bytes(8)), ErrorCodes.PROTOCOL_ERROR),  # a block interrupted
        (_frame(1, 0, 1, b"\x82") + _frame(9, 4, 3, b"\x84"), ErrorCodes.PROTOCOL_ERROR),
        (_frame(1, 0, 1, b"\x82") + _frame(9, 0, 1, b"") * 100, ErrorCodes.ENHANCE_YOUR_CALM),  # CVE-2024-27316
        (_frame(1, 0, 1, b"\x82") + _frame(9, 0, 1, b"\x82" * 16384) * 10, ErrorCodes.ENHANCE_YOUR_CALM),
        (_frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), ErrorCodes.PROTOCOL_ERROR),  # bad HPACK
        (_frame(1, 5, 2, b"\x82\x84\x87\x41\x09good.test"), ErrorCodes.PROTOCOL_ERROR),  # a server's stream number
        (_frame(0, 0, 1, b"x"), ErrorCodes.PROTOCOL_ERROR),  # DATA on a stream that is not open
        (_frame(5, 4, 1, bytes(4)), ErrorCodes.PROTOCOL_ERROR),  # PUSH_PROMISE
        (_frame(7, 0, 0, b""), ErrorCodes.PROTOCOL_ERROR),  # half a GOAWAY
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", ErrorCodes.FRAME_SIZE_ERROR),  # 16,385 bytes are announced
        (_frame(4, 0, 0, struct.pack(">HI", 4, 2**31)), ErrorCodes.FLOW_CONTROL_ERROR),
        (_frame(8, 0, 0, struct.pack(">I", 2**31 - 1)), ErrorCodes.FLOW_CONTROL_ERROR),
    ],
)
def test_a_broken_connection_is_ended(data: bytes, code: ErrorCodes, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with world(hello, audit=audit) as (made, origin):
            client = made.client()
            await client.settle()
            client.pipe.channel.data_received(data)
            await asyncio.wait_for(made.tasks[0], 10)
            client.step()
            assert client.goaway is not None
            assert client.goaway[0] == code
            assert origin.heads == []
            assert client.pipe.is_closing()

    run(main)
    decisions = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "decision"]
    assert [(line["verdict"], line["reason"]) for line in decisions] == [("deny", "malformed")]


def test_what_is_not_http2_is_refused() -> None:
    async def main() -> None:
        async with world(hello) as (made, origin):
            client = made.client()
            client.h2.data_to_send()
            client.pipe.channel.data_received(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
            await asyncio.wait_for(made.tasks[0], 10)
            assert origin.heads == []

    run(main)


def test_more_streams_than_announced_end_the_connection() -> None:
    async def main() -> None:
        async with world(never) as (made, _):
            client = made.client()
            for _ in range(101):
                client.request()
            client.pipe.channel.data_received(client.h2.data_to_send())
            await asyncio.wait_for(made.tasks[0], 10)
            client.step()
            assert client.goaway is not None

    run(main)


def test_a_head_that_is_too_large_is_answered_and_a_bomb_is_not() -> None:
    async def main() -> None:
        async with world(hello, limits=Limits(max_header_bytes=4096)) as (made, origin):
            client = made.client()
            await client.settle()
            assert client.h2.remote_settings.max_header_list_size == 4096
            large = client.request(b"GET", b"/", (b"x", b"a" * 5000))
            many = client.request(b"GET", b"/", *[(b"x%d" % number, b"") for number in range(150)])
            await client.until(lambda: client[large].over and client[many].over)
            assert (client[large].status, client[many].status) == (b"431", b"431")
            client.request(b"GET", b"/", *[(b"bomb", b"a" * 500)] * 30)  # one entry of the table, thirty times
            await client.until(lambda: client.goaway is not None)
            assert client.goaway == (ErrorCodes.ENHANCE_YOUR_CALM, many)
            assert origin.heads == []

    run(main)


def test_streams_count_as_connections() -> None:
    async def main() -> None:
        async with world(never, limits=Limits(max_connections=5)) as (made, origin):
            client = made.client()
            streams = [client.request() for _ in range(8)]
            await client.until(lambda: len(origin.heads) == 5)
            await client.settle()
            assert [client[each].reset for each in streams] == [None] * 5 + [ErrorCodes.REFUSED_STREAM] * 3

    run(main)


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
def test_answers_that_nobody_reads_do_not_pile_up(method: bytes) -> None:
    """A client that asks on and on and takes nothing: not even heads may collect for it."""

    async def main() -> None:
        async with world(hello, rules=()) as (made, _):
            client = made.client()
            await asyncio.sleep(0)
            client.pipe.take()  # unread: how many streams it may open
            client.pipe.channel.pause_writing()
            client.pipe.most_unread = 0
            for _ in range(150):
                client.request(method)
            client.pipe.channel.data_received(client.h2.data_to_send())
            for _ in range(50):
                await asyncio.sleep(0)
            # A hundred are open and wait; more than that is too much.
            assert client.pipe.most_unread < 100
            assert client.pipe.is_closing()

    run(main)


def test_answers_wait_for_a_client_that_reads_again() -> None:
    async def main() -> None:
        async with world(hello, rules=()) as (made, _):
            client = made.client()
            await client.settle()
            client.reads = False
            client.pipe.channel.pause_writing()
            streams = [client.request(b"HEAD") for _ in range(50)]
            await client.settle()
            assert len(made.state.sessions) == 50
            assert client.pipe.sent == b""
            client.reads = True
            await client.until(lambda: all(client[each].over for each in streams))
            assert {client[each].status for each in streams} == {b"403"}
            await client.until(lambda: not made.state.sessions)

    run(main)


def test_pings_paid_for_with_tiny_data_are_not_answered_without_end() -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            stream = client.request(b"POST", end=False)
            await client.until(lambda: len(origin.heads) == 1)
            client.reads = False
            client.pipe.channel.pause_writing()
            client.pipe.most_unread = 0
            for _ in range(100):
                if made.tasks[0].done():
                    break
                client.pipe.channel.data_received((_frame(0, 0, stream, b"x") + _frame(6, 0, 0, bytes(8))) * 50)
                for _ in range(3):
                    await asyncio.sleep(0)
            assert made.tasks[0].done()
            assert client.pipe.most_unread < 64 * 1024

    run(main)


def test_streams_that_are_refused_count_too() -> None:
    async def main() -> None:
        async with world(never, limits=Limits(max_connections=2)) as (made, _):
            client = made.client()
            for _ in range(1000):
                client.request()
                client.step()
                if client.goaway is not None:
                    break
                await asyncio.sleep(0)
            assert client.goaway is not None
            assert client.goaway[0] == ErrorCodes.ENHANCE_YOUR_CALM

    run(main)


def test_a_huge_compression_table_is_not_filled() -> None:
    number = 0

    async def varied(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        while True:
            await origin.head(reader)
            number += 1
            writer.write(b"HTTP/1.1 204 No Content\r\nX-%d: %b\r\n\r\n" % (number, b"%d" % number * 500))

    async def main() -> None:
        async with world(varied) as (made, _):
            client = made.client()
            client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**31})
            for _ in range(20):
                stream = client.request()
                await client.until(lambda stream=stream: client[stream].over)  # type: ignore[misc]
                assert client[stream].status == b"204"
            # The client's table is what ours is.
            assert client.h2.decoder.header_table_size == 4_096

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        _frame(0, 0, 1, b"late"),  # DATA behind the end of the request
        _frame(1, 5, 1, b"\x82\x84\x87\x41\x09good.test"),  # a second head
        _frame(8, 0, 1, struct.pack(">I", 2**31 - 1)) * 2,  # a window beyond all windows
    ],
)
def test_frames_that_h2_resets_a_stream_for_end_its_exchange(data: bytes) -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            stream = client.request()
            await client.until(lambda: len(origin.heads) == 1)
            client.pipe.channel.data_received(data)
            await client.until(lambda: client[stream].over)
            assert client[stream].reset in (ErrorCodes.STREAM_CLOSED, ErrorCodes.FLOW_CONTROL_ERROR)
            await client.until(lambda: not made.state.sessions)
            assert client.goaway is None

    run(main)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=mutations([_frame(6, 0, 0, bytes(8)), _frame(3, 0, 1, bytes(4)), _frame(1, 4, 3, b"\x82")], max_size=6))
def test_damaged_bytes_never_show_a_defect(changes: list[Mutation]) -> None:
    """`world` checks in the end that nothing was left over and that no defect of ours has shown."""

    async def main() -> None:
        async with world(hello_after_body) as (made, _):
            client = made.client()
            client.request(b"GET", b"/a", (b"x-long", b"y" * 50))
            stream = client.request(b"POST", b"/b", (b"te", b"trailers"), end=False)
            client.h2.send_data(stream, b"some payload", pad_length=3)
            client.h2.send_headers(stream, [(b"x-end", b"1")], end_stream=True)
            client.h2.ping(bytes(8))
            client.request(b"POST", b"/c", (b"content-length", b"4"), end=False)
            client.h2.send_data(5, b"body", end_stream=True)
            client.request(b"HEAD")
            client.h2.reset_stream(7)
            client.pipe.channel.data_received(mutate(client.h2.data_to_send(), changes))
            for _ in range(30):
                await asyncio.sleep(0)
            client.pipe.sent.clear()

    run(main)
