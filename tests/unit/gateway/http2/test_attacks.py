"""HTTP/2 clients that mean harm: one bad stream is reset and no other notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from h2.errors import ErrorCodes

from tests.support.gateways.http2_peers import HOST, Headers, Origin, run, world
from tests.unit.gateway.http2.servers import hello_after_body, never

pytestmark = pytest.mark.threat("T-C8")

PLAIN: Headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", HOST), (b":path", b"/")]


def plain(**changes: bytes) -> Headers:
    """The pseudo-header fields with some of them changed; an empty value takes one away."""
    wanted = dict(PLAIN) | {b":" + name.encode(): value for name, value in changes.items()}
    return [(name, value) for name, value in wanted.items() if value]


@pytest.mark.parametrize(
    "headers",
    [
        [*PLAIN, (b"host", b"evil.test")],
        [*PLAIN, (b"host", HOST), (b"host", HOST)],
        plain(authority=b""),
        plain(authority=b"good.test\r\nx: y"),
        plain(authority=b"good.test evil.test"),
        [(b":authority", HOST), *PLAIN],
        [*PLAIN, (b"x", b"y"), (b":path", b"/two")],
        [(b"x", b"y"), *PLAIN],
        [*PLAIN, (b":status", b"200")],
        [*PLAIN, (b":protocol", b"websocket")],
        [*PLAIN, (b":odd", b"1")],
        [*PLAIN, (b"x", b"a\r\nhost: evil.test")],
        [*PLAIN, (b"x", b"a\nb")],
        [*PLAIN, (b"x", b"a\0b")],
        [*PLAIN, (b"x", b"a\x0bb")],
        [*PLAIN, (b"x", b"a\x7fb")],
        [*PLAIN, (b"x", b" a")],
        [*PLAIN, (b"X-Upper", b"a")],
        [*PLAIN, (b"x y", b"a")],
        [*PLAIN, (b"x:y", b"a")],
        [*PLAIN, (b"x\r\ny", b"a")],
        [*PLAIN, (b"", b"a")],
        [*PLAIN, ("x\u00e9".encode(), b"a")],
        [*PLAIN, (b"x(", b"a")],
        [*PLAIN, (b"transfer-encoding", b"chunked")],
        [*PLAIN, (b"connection", b"close")],
        [*PLAIN, (b"keep-alive", b"1")],
        [*PLAIN, (b"proxy-connection", b"close")],
        [*PLAIN, (b"upgrade", b"h2c")],
        [*PLAIN, (b"te", b"gzip")],
        [*PLAIN, (b"content-length", b"5")],
        [*PLAIN, (b"content-length", b"0"), (b"content-length", b"0")],
        [*PLAIN, (b"content-length", b"+0")],
        [*PLAIN, (b"content-length", b"0x0")],
        plain(scheme=b"http"),
        plain(scheme=b""),
        plain(path=b""),
        plain(path=b"*"),
        plain(path=b"no-slash"),
        plain(path=b"https://good.test/"),
        plain(path=b"/a b"),
        plain(path=b"/a HTTP/1.1\r\nhost: evil.test\r\n\r\nGET /b"),
        plain(path=b"/a#b"),
        plain(path=b"/\xc3\xa9"),
        plain(method=b""),
        plain(method=b"get"),
        plain(method=b"GET / HTTP/1.1\r\nx: y\r\n\r\nGET"),
        plain(method=b"CONNECT"),
        plain(method=b"CONNECT", path=b"", scheme=b""),
    ],
)
def test_a_malformed_request_ends_its_stream_and_no_other(headers: Headers, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with world(hello_after_body, audit=audit) as (made, origin):
            client = made.client()
            before = client.request(b"POST", b"/before", end=False)
            await client.until(lambda: len(origin.heads) == 1)
            bad = client.send(headers)
            after = client.request(b"GET", b"/after")
            client.h2.end_stream(before)
            await client.until(lambda: all(client[each].over for each in (bad, before, after)))
            assert client[bad].reset == ErrorCodes.PROTOCOL_ERROR
            assert client[bad].headers is None
            assert (client[before].status, client[after].status) == (b"200", b"200")
            assert client.goaway is None
            assert sorted(head.split()[1] for head in origin.heads) == [b"/after", b"/before"]

    run(main)
    decisions = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "decision"]
    assert [line["verdict"] for line in decisions if line["reason"] == "malformed"] == ["deny"]


@pytest.mark.parametrize("end_with_trailers", [False, True])
@pytest.mark.parametrize("body", [b"123", b"123456"])
def test_a_body_of_another_length_than_announced_is_not_passed_off_as_whole(
    body: bytes, end_with_trailers: bool
) -> None:
    async def main() -> None:
        async with world(never) as (made, origin):
            client = made.client()
            bad = client.request(b"POST", b"/", (b"content-length", b"5"), end=False)
            client.h2.send_data(bad, body, end_stream=not end_with_trailers)
            if end_with_trailers:
                client.h2.send_headers(bad, [(b"x", b"y")], end_stream=True)
            await client.until(lambda: client[bad].over)
            assert client[bad].reset == ErrorCodes.PROTOCOL_ERROR
            # The connection's window is whole again, so nothing is lost for good.
            await client.settle()
            assert client.h2.outbound_flow_control_window >= 100 * 256 * 1024 - len(body)
            assert client.goaway is None
            assert origin.heads == [] or b"Content-Length: 5" in origin.heads[0]

    run(main)


@pytest.mark.parametrize(
    "trailers", [[(b":path", b"/")], [(b"x", b"a\r\nb")], [(b"X", b"a")], [(b"connection", b"close")]]
)
def test_malformed_trailers_end_the_stream(trailers: Headers) -> None:
    async def main() -> None:
        async with world(never) as (made, _):
            client = made.client()
            bad = client.request(b"POST", end=False)
            client.h2.send_data(bad, b"x")
            client.h2.send_headers(bad, trailers, end_stream=True)
            good = client.request(b"DELETE", b"/", (b"expect", b"nonsense"))
            await client.until(lambda: client[bad].over and client[good].over)
            assert client[bad].reset == ErrorCodes.PROTOCOL_ERROR
            assert client[good].status == b"417"

    run(main)


def test_framing_fields_in_trailers_do_not_reach_the_server() -> None:
    seen: list[bytes] = []

    async def take(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await origin.head(reader)
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def main() -> None:
        async with world(take) as (made, _):
            client = made.client()
            stream = client.request(b"POST", end=False)
            trailers = [(b"content-length", b"5"), (b"host", b"evil.test"), (b"authorization", b"x"), (b"a", b"b")]
            client.h2.send_data(stream, b"x")
            client.h2.send_headers(stream, trailers, end_stream=True)
            await client.until(lambda: client[stream].over)
            assert seen == [b"1\r\nx\r\n0\r\na: b\r\n\r\n"]

    run(main)


def test_rapid_reset_ends_the_connection() -> None:
    """CVE-2023-44487: streams that are opened and reset at once."""

    async def main() -> None:
        async with world(never) as (made, _):
            client = made.client()
            for _ in range(1000):
                stream = client.request()
                client.h2.reset_stream(stream)
                client.step()
                if client.goaway is not None:
                    break
                await asyncio.sleep(0)
                assert len(made.state.sessions) <= 200
            assert client.goaway is not None
            assert client.goaway[0] == ErrorCodes.ENHANCE_YOUR_CALM
            assert stream < 2 * 2 * 250
            await asyncio.wait_for(made.tasks[0], 10)

    run(main)


def test_resets_that_we_are_made_to_send_count_too() -> None:
    """CVE-2025-8671: the client makes the server reset its streams."""

    async def main() -> None:
        async with world(never) as (made, _):
            client = made.client()
            for _ in range(1000):
                client.send([*PLAIN, (b"connection", b"x")])
                client.step()
                if client.goaway is not None:
                    break
                await asyncio.sleep(0)
            assert client.goaway is not None
            assert client.goaway[0] == ErrorCodes.ENHANCE_YOUR_CALM
            await asyncio.wait_for(made.tasks[0], 10)

    run(main)
