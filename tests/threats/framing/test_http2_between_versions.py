"""HTTP/2 and gRPC inside an intercepted tunnel: what a server says in one version must not break the other."""

from __future__ import annotations

import socket

import pytest

from tests.support.clients.http2 import Http2Client, Stream
from tests.support.gateways.intercepted import REAL, WITH_KEY, Intercepted, StartIntercepted, for_good
from tests.support.origins.raw import RawHandler, RawOrigin, read_head, receive_all

pytestmark = pytest.mark.threat("T-C8")


def answer_with(*parts: bytes) -> RawHandler:
    """The same bytes for every request."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            for part in parts:
                conn.sendall(part)

    return handle


def ask_h2(scene: Intercepted, *more: tuple[bytes, bytes]) -> Stream:
    with scene.open(alpn=("h2",)) as conn:
        client = Http2Client(conn)
        number = client.begin(fields=more)
        try:
            return client.wait(number)
        except ConnectionError:
            client.streams[number].reset = -1  # with the whole connection
            return client.streams[number]


GRPC = b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web\r\nContent-Length: %d\r\n\r\n%b"


def test_a_counted_grpc_answer_has_one_length(start_intercepted: StartIntercepted) -> None:
    """Two lengths are what request smuggling is made of, even if they agree. gRPC-Web over HTTP/1.1 has one."""
    body = b"\0\0\0\0\x05hello"
    scene = start_intercepted(secrets=for_good(), handler=answer_with(GRPC % (len(body), body)))
    with scene.open() as conn:
        conn.sendall(WITH_KEY.replace(b"\r\nX-Key", b"\r\nConnection: close\r\nX-Key") % scene.placeholder())
        received = receive_all(conn)
    assert received.endswith(body)
    assert received.lower().count(b"content-length:") == 1


def test_a_counted_grpc_answer_reaches_a_client_of_http2(start_intercepted: StartIntercepted) -> None:
    """And does not become an internal error."""
    body = b"\0\0\0\0\x05hello"
    scene = start_intercepted(secrets=for_good(), handler=answer_with(GRPC % (len(body), body)))
    got = ask_h2(scene, (b"x-key", scene.placeholder()))
    assert (got.reset, bytes(got.body)) == (None, body)
    assert scene.gate.gateway.counters.internal_errors == 0


NAME = REAL.translate(bytes.maketrans(b"/ =", b"---"))
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
ANSWERS = {
    "plain": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "hop by hop": b"HTTP/1.1 200 OK\r\nConnection: x-y\r\nX-Y: 1\r\nKeep-Alive: 1\r\nTE: a\r\nUpgrade: h2c\r\n"
    b"Proxy-Connection: close\r\nHTTP2-Settings: x\r\nContent-Length: 2\r\n\r\nok",
    "interim": b"HTTP/1.1 103 Early\r\nLink: a\r\nX-E: %b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" % REAL,
    "trailers": CHUNKED + b"\r\n2\r\nok\r\n0\r\nX-T: %b\r\nTE: x\r\nHost: y\r\n\r\n" % REAL,
    "obs-text": b"HTTP/1.1 200 \xff\r\nX: \xff \xfe\r\nEmpty:\r\nContent-Length: 2\r\n\r\nok",
    "value as name": b"HTTP/1.1 200 OK\r\nX-%b: 1\r\nContent-Length: 2\r\n\r\nok" % NAME,
    "many": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(250)) + b"Content-Length: 2\r\n\r\nok",
    "pseudo in text": b"HTTP/1.1 200 OK\r\nstatus: 200\r\nContent-Length: 2\r\n\r\nok",
    "204": b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
    "304": b"HTTP/1.1 304 No\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\n",
    "205": b"HTTP/1.1 205 Reset\r\nContent-Length: 0\r\n\r\n",
    "grpc": CHUNKED + b"Content-Type: application/grpc\r\n\r\n2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n",
    "proxy-status": b"HTTP/1.1 200 OK\r\nProxy-Status: x; details=\"%b\"\r\nContent-Length: 2\r\n\r\nok" % REAL,
    "reason": b"HTTP/1.1 200 %b\r\nContent-Length: 2\r\n\r\nok" % REAL,
    "unknown coding": b"HTTP/1.1 200 OK\r\nContent-Encoding: compress\r\nContent-Length: 2\r\n\r\nok",
    "half coded": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
    "too many interim": b"HTTP/1.1 103 Early\r\n\r\n" * 20,
    "garbage": b"nonsense\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "101": b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_no_answer_is_an_internal_error_or_leaks(answer: bytes, start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=for_good(), handler=answer_with(answer))
    got = ask_h2(scene, (b"x-key", scene.placeholder()))
    assert got.headers or got.reset is not None
    assert REAL not in repr(got).encode()
    assert REAL in scene.origin.everything or not scene.origin.everything
    assert scene.gate.gateway.counters.internal_errors == 0
    with scene.open() as conn:
        conn.sendall(WITH_KEY.replace(b"\r\nX-Key", b"\r\nConnection: close\r\nX-Key") % scene.placeholder())
        received = receive_all(conn)
    assert REAL not in received
    assert received.startswith(b"HTTP/1.1 ") or answer == ANSWERS["half coded"]  # which is a reset


REQUESTS = {
    "plain": (),
    "host differs": ((b"host", b"evil.test"),),
    "host too": ((b"host", b"good.test"),),
    "line ending": ((b"x", b"a\r\nx-y: b"),),
    "name with a colon": ((b"x:y", b"a"),),
    "connection": ((b"connection", b"x"),),
    "te": ((b"te", b"gzip"),),
    "te trailers": ((b"te", b"trailers"),),
    "expect": ((b"expect", b"100-continue"),),
    "expect else": ((b"expect", b"x"),),
    "websocket": ((b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="), (b"sec-websocket-version", b"13")),
    "upper case": ((b"X-Up", b"1"),),
    "late pseudo": ((b"x", b"1"), (b":path", b"/two")),
    "length": ((b"content-length", b"5"),),
    "length 0": ((b"content-length", b"0"),),
    "many": tuple((b"x-%d" % n, b"1") for n in range(300)),
    "cookies": ((b"cookie", b"a=b"), (b"cookie", b"c=d")),
    "protocol": ((b":protocol", b"websocket"),),
    "empty": ((b"x", b""),),
    "spaces": ((b"x", b" a "),),
    "obs": ((b"x", b"\xff\xfe"),),
}


@pytest.mark.parametrize("more", REQUESTS.values(), ids=REQUESTS.keys())
def test_no_request_is_an_internal_error(
    more: tuple[tuple[bytes, bytes], ...], start_intercepted: StartIntercepted
) -> None:
    scene = start_intercepted(secrets=for_good())
    got = ask_h2(scene, (b"x-key", scene.placeholder()), *more)
    assert got.headers or got.reset is not None
    assert scene.gate.gateway.counters.internal_errors == 0
    assert b"evil" not in scene.origin.everything
    assert b"\r\nx-y: b" not in scene.origin.everything
    assert ask_h2(scene, (b"x-key", scene.placeholder())).headers
    assert REAL in scene.origin.everything


def test_a_trailer_that_grows_is_no_internal_error(start_intercepted: StartIntercepted) -> None:
    """The placeholder is longer than the value, so a line that was short enough when it came is not when it goes on."""
    trailer = REAL + b"a" * (1024 - len(b"X-T: ") - len(REAL))
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: %b\r\n\r\n" % trailer
    scene = start_intercepted(secrets=for_good(), handler=answer_with(answer))
    key = scene.placeholder()
    assert len(key) > len(REAL)
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % key)
        assert b"X-T: " + key in receive_all(conn)  # over HTTP/1.1 it comes through
    got = ask_h2(scene, (b"x-key", key))
    assert scene.gate.gateway.counters.internal_errors == 0
    assert got.reset is None
    assert dict(got.trailers)[b"x-t"].startswith(key)


def test_long_trailers_of_grpc_come_through(start_intercepted: StartIntercepted) -> None:
    """`grpc-status-details-bin` is a message of its own, and often over a kilobyte."""
    details = b"QUFB" * 1000
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
        b"grpc-status: 3\r\ngrpc-status-details-bin: %b\r\n\r\n" % details
    )
    scene = start_intercepted(secrets=for_good(), handler=answer_with(answer))
    got = ask_h2(scene, (b"x-key", scene.placeholder()))
    assert got.headers
    assert dict(got.trailers).get(b"grpc-status-details-bin") == details
