"""Unclear HTTP once more, inside TLS that is looked into: the cases are those of plain HTTP."""

from __future__ import annotations

import socket

import pytest

from tests.support.clients.talk import read_reply
from tests.support.gateways.framing import (
    ACCEPT,
    B3_BAD_BODIES,
    PATHS,
    SECOND,
    WEBSOCKET,
    post,
    statuses,
    websocket_answer,
)
from tests.support.gateways.intercepted import DOORS, Intercepted, StartIntercepted, read_rest
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawOrigin, receive_body

ABSOLUTE = "http://good.test:{port}"
SECOND_REQUEST = f"GET {SECOND} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode()
every_door = pytest.mark.parametrize("door", DOORS)


def inside(text: str) -> bytes:
    """A request of the plain tests as it is sent inside a tunnel."""
    return text.replace(ABSOLUTE, "").replace("{port}", "443").encode("latin-1")


def assert_bad(scene: Intercepted, request: bytes, *allowed: int, door: str = "connect") -> None:
    """One refusal, then the end of TLS; nothing dialled, one record, and the request behind it never served."""
    with scene.open(door=door) as conn:
        conn.sendall(request + SECOND_REQUEST)
        reply = read_reply(conn)
        assert reply.status in (allowed or (400,)), reply.head
        assert read_rest(conn) == b"", "the connection goes on after a malformed request"
    assert scene.decided() == [("allow", "intercepted"), ("deny", "malformed")]
    assert scene.origin.connections == 0
    assert scene.gate.asked == []


def test_control_requests_in_order_are_served(start_intercepted: StartIntercepted) -> None:
    """The control of all that follows: the same probes with one meaning pass and are framed again."""
    scene = start_intercepted(handler=receive_body)
    for text in (
        post("Content-Length: 5", body="hello"),
        post("Content-Length: 0"),
        post("transfer-ENCODING:   Chunked  ", body="5\r\nhello\r\n0\r\n\r\n"),
        post("Transfer-Encoding: chunked", body="005;a=b\r\nhello\r\n000;c\r\n\r\n"),
        "\r\n" + post(),
    ):
        with scene.open() as conn:
            conn.sendall(inside(text) + SECOND_REQUEST)
            assert [read_reply(conn).status, read_reply(conn).status] == [200, 200]
    sent = scene.origin.everything
    assert sent.count(b"5\r\nhello\r\n0\r\n\r\n") == 2
    assert b"a=b" not in sent


@pytest.mark.threat("T-B3")
@pytest.mark.parametrize("secrets", [False, True], ids=["", "with a secret"])
@pytest.mark.parametrize("body", B3_BAD_BODIES.values(), ids=B3_BAD_BODIES.keys())
def test_malformed_chunks_never_become_a_whole_request(
    body: str, secrets: bool, start_intercepted: StartIntercepted
) -> None:
    """The head of the request may be out; its end never is, whether or not secrets are looked for in it."""
    given = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}} if secrets else None
    scene = start_intercepted(handler=receive_body, secrets=given)
    with scene.open() as conn:
        conn.sendall(inside(post("Transfer-Encoding: chunked", body=body)) + SECOND_REQUEST)
        assert statuses(read_rest(conn)) == [400]
    assert [end["status"] for end in scene.ends() if end["method"] == "POST"] == [400]
    sent = scene.origin.everything
    assert b"0\r\n\r\n" not in sent, "the server got a whole request"
    assert SECOND.encode() not in sent


@pytest.mark.threat("T-B4")
@every_door
def test_each_request_of_a_connection_is_judged(door: str, start_intercepted: StartIntercepted) -> None:
    """One after the other, and all in one segment; what is refused does not go out, what is behind it does."""
    scene = start_intercepted(["good.test private methods=GET"])
    get, delete = b"GET /%d HTTP/1.1\r\nHost: good.test\r\n\r\n", b"DELETE /%d HTTP/1.1\r\nHost: good.test\r\n\r\n"
    wanted = [(get, 200), (delete, 403), (get, 200), (delete, 403), (get, 200)]
    with scene.open(door=door) as conn:
        for number, (text, status) in enumerate(wanted):
            conn.sendall(text % number)
            assert read_reply(conn).status == status
        conn.sendall(b"".join(text % (number + 10) for number, (text, _) in enumerate(wanted)))
        assert [read_reply(conn).status for _ in wanted] == [status for _, status in wanted]
        conn.sendall(get % 20 + b"GET /21 HTTP/1.1\r\nHost: other.test\r\n\r\n" + get % 22)
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 421]
        assert read_rest(conn) == b""
    sent = scene.origin.everything
    assert b"DELETE" not in sent
    assert [line.split()[1] for line in sent.split(b"\r\n") if line.startswith(b"GET")] == [
        b"/0", b"/2", b"/4", b"/10", b"/12", b"/14", b"/20",
    ]  # fmt: skip


@pytest.mark.threat("T-B4")
def test_a_denied_request_with_a_body_ends_the_connection(start_intercepted: StartIntercepted) -> None:
    """The body of a refused request is not taken for the next one."""
    scene = start_intercepted(["good.test private methods=GET"])
    for framing in (b"Content-Length: %d" % len(SECOND_REQUEST), b"Transfer-Encoding: chunked"):
        with scene.open() as conn:
            conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\n%b\r\n\r\n" % framing + SECOND_REQUEST)
            assert statuses(read_rest(conn)) == [403]
    assert scene.origin.connections == 0


@pytest.mark.threat("T-B5")
@pytest.mark.parametrize(
    "headers",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    ],
)
def test_an_upgrade_to_anything_but_websocket_is_stripped(headers: str, start_intercepted: StartIntercepted) -> None:
    """The server is asked without Upgrade, and the bytes behind are the next request."""
    scene = start_intercepted()
    with scene.open() as conn:
        conn.sendall(
            f"GET / HTTP/1.1\r\nHost: good.test\r\n{headers}\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode()
        )
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 421]
    sent = scene.origin.everything.lower()
    for word in (b"upgrade", b"h2c", b"http2-settings", b"evil"):
        assert word not in sent


BAD_101 = {
    "wrong accept": (WEBSOCKET, b"HTTP/1.1 101 X\r\n" + ACCEPT.replace(b"s3pP", b"AAAA")),
    "no accept": (WEBSOCKET, b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
    "not asked for": ("", b"HTTP/1.1 101 X\r\n" + ACCEPT),
}


@pytest.mark.threat("T-B5")
@pytest.mark.parametrize(("headers", "response"), BAD_101.values(), ids=BAD_101.keys())
def test_a_101_that_is_not_in_order_opens_no_relay(
    headers: str, response: bytes, start_intercepted: StartIntercepted
) -> None:
    """Only the 101 of a WebSocket that was asked for joins the streams. The control is in the integration tests."""
    scene = start_intercepted(handler=websocket_answer(response))
    with scene.open() as conn:
        conn.sendall(f"GET / HTTP/1.1\r\nHost: good.test\r\n{headers}\r\nraw bytes".encode())
        assert statuses(read_rest(conn)) == [502]
    assert b"raw bytes" not in scene.origin.everything


@pytest.mark.threat("T-B6")
def test_hop_by_hop_and_proxy_fields_stay_here(start_intercepted: StartIntercepted) -> None:
    """What is meant for one hop does not go on; what is meant for the server does."""
    scene = start_intercepted()
    headers = (
        "Proxy-Authorization: Basic bWU6cGFzcw==\r\nProxy-Connection: keep-alive\r\nproxy-x: 1\r\nKeep-Alive: 5\r\n"
        "TE: gzip\r\nConnection: X-Hop\r\nX-Hop: 1\r\nAuthorization: Bearer x\r\nX-End: 1\r\n"
    )
    with scene.open() as conn:
        conn.sendall(f"GET / HTTP/1.1\r\nHost: good.test\r\n{headers}\r\n".encode())
        assert read_reply(conn).status == 200
    sent = scene.origin.everything.lower()
    for word in (b"proxy", b"bwu6", b"keep-alive", b"te: gzip", b"x-hop", b"connection:"):
        assert word not in sent, word
    assert b"authorization: bearer x" in sent
    assert b"x-end: 1" in sent


@pytest.mark.threat("T-B6")
@pytest.mark.parametrize(("method", "status"), [("TRACE", 405), ("TRACK", 400), ("trace", 400), ("CONNECT", 405)])
def test_trace_is_not_served(method: str, status: int, start_intercepted: StartIntercepted) -> None:
    """TRACE would echo the credentials, those put in by us among them."""
    scene = start_intercepted(["good.test private"], secrets={"KEY": {"hosts": ["good.test private"]}})
    target = "evil.test:443" if method == "CONNECT" else "/"
    assert_bad(scene, f"{method} {target} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode(), status)


@pytest.mark.threat("T-B7")
@every_door
@pytest.mark.parametrize("kind", ["allowed paths", "denied paths"])
def test_the_path_that_was_judged_is_the_path_that_is_sent(
    kind: str, door: str, start_intercepted: StartIntercepted
) -> None:
    """Dot segments, their escapes and doubled slashes are gone before the judgement and stay gone."""
    if kind == "allowed paths":
        scene = start_intercepted(["good.test private paths=/pub/**"])
    else:
        scene = start_intercepted(["good.test private"], deny=["good.test paths=/secret|/secret/**|/|/public|/PUB/**"])
    expected = []
    with scene.open(door=door) as conn:
        for path, (clean, allowed) in PATHS.items():
            conn.sendall(b"GET %b HTTP/1.1\r\nHost: good.test\r\n\r\n" % path.encode())
            assert read_reply(conn).status == (200 if allowed else 403), path
            if allowed:
                expected.append(clean.encode())
    sent = [line.split(b" ")[1] for line in scene.origin.everything.split(b"\r\n") if line.startswith(b"GET ")]
    assert sent == expected


@pytest.mark.threat("T-B8")
def test_http_1_0_is_judged_like_1_1(start_intercepted: StartIntercepted) -> None:
    """An old client, with or without Host, gets the same policy."""
    scene = start_intercepted(["good.test private methods=GET"])
    for host, method, status in (
        ("", "GET", 200),
        ("Host: good.test\r\n", "GET", 200),
        ("Host: evil.test\r\n", "GET", 421),
        ("", "PUT", 403),
    ):
        with scene.open() as conn:
            conn.sendall(f"{method} / HTTP/1.0\r\n{host}\r\n".encode())
            assert statuses(read_rest(conn)) == [status]
    assert scene.origin.everything.count(b"Host: good.test\r\n") == 2


@pytest.mark.threat("T-B2")
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/2 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_unclear_framing_of_a_response_is_refused(response: bytes, start_intercepted: StartIntercepted) -> None:
    """The other way round: a server's ambiguous answer becomes 502, and its connection is not used again."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(response)
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle)
    for _ in range(2):
        with scene.open() as conn:
            conn.sendall(SECOND_REQUEST)
            assert statuses(read_rest(conn)) == [502]
    assert scene.origin.connections == 2


@pytest.mark.threat("T-B2")
def test_an_answer_that_nobody_asked_for_is_nobodys_answer(start_intercepted: StartIntercepted) -> None:
    """Bytes behind a response are dropped with their connection, never given to the next request."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            conn.sendall(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

    scene = start_intercepted(handler=handle)
    with scene.open() as conn:
        for _ in range(3):
            conn.sendall(SECOND_REQUEST)
            assert read_reply(conn).body == b"hello"
    assert scene.origin.connections == 3
