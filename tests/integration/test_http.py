"""Plain HTTP through the gateway: what a forward proxy must do, request by request."""

from __future__ import annotations

import socket
import threading

from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_all, read_until
from tests.support.origins.plain import OK, Origin, answering


def get(origin: Origin, path: str = "/", host: str = "good.test", extra: str = "") -> bytes:
    authority = f"{host}:{origin.port}"
    return f"GET http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\n{extra}\r\n".encode()


HOSTS = {"good.test": "127.0.0.1", "evil.test": "127.0.0.1"}


def test_allowed_request_reaches_the_server_in_origin_form(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The server sees a path, the right Host, and none of the proxy's own headers."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    answer = gate.send(get(origin, "/a?b=c", extra="Proxy-Connection: keep-alive\r\nX-Own: 1\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"hello")
    head = origin.heads[0]
    assert head.startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert f"Host: good.test:{origin.port}\r\n".encode() in head
    assert b"X-Own: 1\r\n" in head
    assert b"proxy" not in head.lower()


def test_denied_request_gets_403_with_the_rule_to_add(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """One record, no connection, no DNS, and a reply that says what to do."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    answer = gate.send(get(origin, host="evil.test"))
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"Proxy-Status: exeat; error=http_request_denied" in answer
    assert f"--allow evil.test:{origin.port}".encode() in answer
    assert origin.connections == 0
    assert gate.asked == []
    assert [line["verdict"] for line in gate.decisions()] == ["deny"]


def test_every_pipelined_request_is_decided_on_its_own(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Good, evil, good in one segment: answered in order, and only the good ones go out."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    answer = gate.send(get(origin, "/1") + get(origin, "/2", host="evil.test") + get(origin, "/3"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"403", b"200"]
    assert [head.split(b" ")[1] for head in origin.heads] == [b"/1", b"/3"]
    assert [line["verdict"] for line in gate.decisions()] == ["allow", "deny", "allow"]


def test_upstream_connections_are_reused(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Ten requests on ten client connections need one connection to the server."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    for _ in range(10):
        assert gate.send(get(origin)).endswith(b"hello")
    assert origin.connections == 1


def test_a_closed_idle_upstream_is_replaced(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A server that closes after each answer without saying so costs no request."""
    origin = start_origin(answering(OK))
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    for _ in range(5):
        assert gate.send(get(origin)).endswith(b"hello")


def test_chunked_answer_keeps_payload_and_trailers(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Chunks and trailers arrive; chunk extensions do not."""
    origin = start_origin(
        answering(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\nContent-Length: 9\r\n\r\n"
        )
    )
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    head, _, body = gate.send(get(origin)).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"5\r\nabcde\r\n0\r\nX-Sum: 5\r\n\r\n"


def test_chunked_answer_to_an_old_client_is_sent_plain(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """HTTP/1.0 knows no chunks: the payload comes bare and the connection ends it."""
    origin = start_origin(answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    answer = gate.send(f"GET http://good.test:{origin.port}/ HTTP/1.0\r\n\r\n".encode())
    assert answer.endswith(b"\r\n\r\nabc")
    assert b"chunked" not in answer


def test_uploads_stream_both_counted_and_chunked(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The server gets the payload while the client is still sending."""
    got: list[bytes] = []
    first_part = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        origin.read_head(conn, buffer)
        while b"LAST" not in buffer:
            if b"first" in buffer:
                first_part.set()
            buffer += conn.recv(65536)
        got.append(bytes(buffer))
        conn.sendall(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    authority = f"good.test:{origin.port}"
    for framing, parts in (
        ("Content-Length: 9", [b"first", b"LAST"]),
        ("Transfer-Encoding: chunked", [b"5\r\nfirst\r\n", b"4\r\nLAST\r\n0\r\n\r\n"]),
    ):
        first_part.clear()
        with gate.connect() as conn:
            conn.sendall(f"POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{framing}\r\n\r\n".encode())
            conn.sendall(parts[0])
            assert first_part.wait(60)
            conn.sendall(parts[1])
            assert read_until(conn, b"hello").startswith(b"HTTP/1.1 200")
    assert got[0] == b"firstLAST"
    assert got[1].replace(b"\r\n0\r\n\r\n", b"") == b"5\r\nfirst\r\n4\r\nLAST"


def test_expect_continue_is_answered_by_the_server(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """100 comes through, then the body goes up, then the answer comes down."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        head = origin.read_head(conn, buffer)
        assert head is not None
        assert b"Expect: 100-continue" in head
        conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(buffer) < 4:
            buffer += conn.recv(100)
        conn.sendall(OK)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    authority = f"good.test:{origin.port}"
    with gate.connect() as conn:
        conn.sendall(
            f"PUT http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 4\r\n"
            "Expect: 100-continue\r\n\r\n".encode()
        )
        assert read_until(conn, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(b"body")
        assert read_until(conn, b"hello").endswith(b"hello")


def test_head_and_bodyless_statuses_do_not_wait_for_a_body(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """HEAD with a length, 204 and 304: the connection is ready for the next request at once."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while (head := origin.read_head(conn, buffer)) is not None:
            if head.startswith(b"HEAD"):
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            else:
                status = head.split(b" ")[1].strip(b"/")
                length = b"Content-Length: 99\r\n" if status == b"304" else b""
                conn.sendall(b"HTTP/1.1 %b X\r\n%b\r\n" % (status, length))

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    requests = get(origin).replace(b"GET", b"HEAD", 1) + get(origin, "/204") + get(origin, "/304")
    answer = gate.send(requests)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"204", b"304"]
    assert origin.connections == 1


def test_server_sent_events_are_not_buffered(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Each event arrives while the stream is still open."""
    go_on = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        go_on.wait(10)
        conn.sendall(b"data: 2\n\n")

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        conn.sendall(get(origin))
        assert read_until(conn, b"data: 1\n\n").endswith(b"data: 1\n\n")
        go_on.set()
        assert read_all(conn) == b"data: 2\n\n"


def test_websocket_upgrade_becomes_a_relay(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """After a valid 101 bytes flow both ways; the key's digest is checked."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        head = origin.read_head(conn, bytearray())
        assert head is not None
        assert b"Upgrade: websocket" in head
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nwelcome"
        )
        while data := conn.recv(1000):
            conn.sendall(data.upper())

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with gate.connect() as conn:
        conn.sendall(get(origin, extra=upgrade + "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"))
        assert read_until(conn, b"welcome").startswith(b"HTTP/1.1 101")
        conn.sendall(b"ping")
        assert read_until(conn, b"PING") == b"PING"
