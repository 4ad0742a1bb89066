"""Broken TLS, broken framing, and many at once: nothing may be left behind, and no one else may notice."""

from __future__ import annotations

import random
import socket
import ssl

import pytest

from tests.support.clients.http2 import Http2Client
from tests.support.clients.talk import read_reply
from tests.support.gateways.doors import open_connect
from tests.support.gateways.intercepted import REAL, WITH_KEY, Intercepted, StartIntercepted, for_good
from tests.support.origins.raw import RawOrigin, read_head


def speak(scene: Intercepted, spoil: random.Random) -> None:
    """A handshake and a request over a tunnel, of which one packet is changed, cut, repeated or left out."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = scene.trust(spoil.choice([("http/1.1",), ("h2",), ("h2", "http/1.1")]))
    if spoil.random() < 0.5:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = context.wrap_bio(incoming, outgoing, server_hostname="good.test")
    step, at = 0, spoil.randrange(4)
    with open_connect(scene, b"good.test", 443) as conn:
        conn.settimeout(0.3)
        try:
            for _ in range(8):
                try:
                    if step < 3:
                        tls.do_handshake()
                        step = 3
                    tls.write(WITH_KEY % scene.placeholder())
                    tls.read(65536)
                except ssl.SSLWantReadError:
                    pass
                data = bytearray(outgoing.read())
                if step == at or not at:
                    at = -1
                    kind = spoil.randrange(5)
                    if kind == 0 and data:
                        data[spoil.randrange(len(data))] ^= 1 << spoil.randrange(8)
                    elif kind == 1:
                        data = data[: spoil.randrange(len(data) + 1)]
                    elif kind == 2:
                        data = bytearray(bytes(data) * 2)
                    elif kind == 3:
                        data = bytearray(spoil.randbytes(200))
                    else:
                        return
                step += 1
                conn.sendall(data)
                if spoil.random() < 0.2:
                    conn.shutdown(socket.SHUT_WR)
                got = conn.recv(65536)
                if not got:
                    return
                incoming.write(got)
        except OSError:
            return


@pytest.mark.threat("T-C2")
def test_broken_handshakes_leave_nothing(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=for_good())
    spoil = random.Random(7)
    for _ in range(60):
        speak(scene, spoil)
    with scene.open() as conn:  # it still serves
        conn.sendall(WITH_KEY % scene.placeholder())
        assert read_reply(conn).status == 200
    assert REAL in scene.origin.everything
    scene.settle()
    state = scene.gate.gateway.state
    assert not state.sessions
    assert state.counters.internal_errors == 0


def pipelined(scene: Intercepted, requests: list[bytes]) -> bytes:
    with scene.open() as conn:
        conn.sendall(b"".join(requests))
        received = bytearray()
        conn.settimeout(5)
        try:
            while data := conn.recv(65536):
                received += data
        except TimeoutError:
            pass
    return bytes(received)


@pytest.mark.threat("T-B4")
@pytest.mark.parametrize("length", [5, 70_000])
def test_pipelined_requests_get_their_own_answers(length: int, start_intercepted: StartIntercepted) -> None:
    """HEAD, GET and POST with a body that is read whole, one behind the other, with compressed answers."""
    import gzip

    import h11

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while True:
            while b"\r\n\r\n" not in raw:
                if not origin.read(conn, raw):
                    return
            head, _, rest = bytes(raw).partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            while len(rest) < size:
                rest += conn.recv(65536)
            raw[:] = rest[size:]
            name = head.split()[1]
            body = gzip.compress(name + REAL + b"." * length)
            conn.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nX-Path: %b\r\nContent-Length: %d\r\n\r\n"
                % (name, len(body))
                + (b"" if head.startswith(b"HEAD") else body)
            )

    scene = start_intercepted(secrets=for_good(where=["headers", "body"]), handler=handle)
    key = scene.placeholder()
    asked = [
        b"HEAD /1 HTTP/1.1\r\nHost: good.test\r\nX: %b\r\n\r\n" % key,
        b"GET /2 HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"POST /3 HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n%b" % (len(key), key),
        b"HEAD /4 HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"GET /5 HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n",
    ]
    received = pipelined(scene, asked)
    assert REAL not in received
    for number, method in enumerate(("HEAD", "GET", "POST", "HEAD", "GET"), 1):
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(received)
        body = bytearray()
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert event is not h11.NEED_DATA
            if isinstance(event, h11.Response):
                assert (b"x-path", b"/%d" % number) in list(event.headers)
            elif isinstance(event, h11.Data):
                body += event.data
        assert (body == b"") == (method == "HEAD")
        assert bytes(body).startswith(b"/%d" % number + key) or not body
        received = client.trailing_data[0]
    assert received == b""


@pytest.mark.threat("T-C8")
def test_streams_do_not_mix(start_intercepted: StartIntercepted) -> None:
    """A hundred requests on one connection, answered out of order by many: each gets what it asked for."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := read_head(conn, origin, raw):
            name = head.partition(b"x-n: ")[2].partition(b"\r\n")[0]
            body = name + b":" + REAL
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    scene = start_intercepted(secrets=for_good(), handler=handle)
    key = scene.placeholder()
    with scene.open(alpn=("h2",)) as conn:
        client = Http2Client(conn)
        for number in range(100):
            got = client.ask(fields=[(b"x-n", b"%d" % number), (b"x-key", key)])
            assert got.body == b"%d:%b" % (number, key)


@pytest.mark.threat("T-C8")
def test_bodies_that_stop_anywhere_are_no_internal_error(start_intercepted: StartIntercepted) -> None:
    """HTTP/2 requests with bodies to put values into: cut, reset, too long, too short, compressed, in odd frames."""
    import gzip
    import zlib

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            conn.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\nX-E: %b\r\n\r\n" % REAL
            )
            packed = gzip.compress(REAL * 20)
            for at in range(0, len(packed), 7):
                conn.sendall(b"%x\r\n%b\r\n" % (len(packed[at : at + 7]), packed[at : at + 7]))
            conn.sendall(b"0\r\nX-T: %b\r\n\r\n" % REAL)
            origin.read(conn, raw)
            return

    scene = start_intercepted(secrets=for_good(where=["headers", "body", "path", "query", "basic"]), handler=handle)
    key = scene.placeholder()
    spoil = random.Random(3)
    seen = bytearray()
    for _ in range(40):
        with scene.open(alpn=("h2",)) as conn:
            client = Http2Client(conn)
            for _ in range(4):
                body = spoil.choice([key, key * 3, b"x" * 30_000 + key, gzip.compress(key), zlib.compress(key)])
                stream = client.h2.get_next_available_stream_id()
                head = [
                    (b":method", b"POST"),
                    (b":scheme", b"https"),
                    (b":authority", b"good.test"),
                    (b":path", b"/" + key),
                ]
                if spoil.random() < 0.5:
                    head.append((b"content-length", b"%d" % (len(body) + spoil.choice([0, 0, 0, 1, -1]))))
                if spoil.random() < 0.5:
                    head.append((b"content-encoding", spoil.choice([b"gzip", b"deflate", b"br", b"x"])))
                if spoil.random() < 0.3:
                    head.append((b"expect", b"100-continue"))
                if spoil.random() < 0.3:
                    head.append((b"content-type", spoil.choice([b"application/grpc", b"application/json"])))
                client.h2.send_headers(stream, head)
                at = 0
                while at < len(body):
                    size = spoil.choice([1, 10, 1000, 16000])
                    client.h2.send_data(stream, body[at : at + size], pad_length=spoil.choice([None, 0, 5]))
                    at += size
                    client.flush()
                    if spoil.random() < 0.1:
                        client.h2.reset_stream(stream)
                        break
                else:
                    if spoil.random() < 0.3:
                        client.h2.send_headers(stream, [(b"x-t", key)], end_stream=True)
                    elif spoil.random() < 0.8:
                        client.h2.end_stream(stream)
                client.flush()
            conn.settimeout(0.1)
            try:
                while data := conn.recv(65536):
                    seen += data
            except OSError:
                pass
    assert REAL in scene.origin.everything or b"sk-real%2F" in scene.origin.everything
    assert b"real/value" not in seen
    scene.settle()
    assert scene.gate.gateway.counters.internal_errors == 0
