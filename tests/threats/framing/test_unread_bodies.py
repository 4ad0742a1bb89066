"""A body that its server does not read is the server's next request, and its answer the next client's (CWE-444).

Python's http.server is such a server: it leaves alone what its handlers do not read. So a request that may have a body
which is not read is the last on its connection, and the server is told so.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.dial import dial
from exeat.gateway.gates.resolve import IPAddress
from exeat.wire.http2 import End, Head, RequestReader
from tests.support.clients.answers import parse_answer
from tests.support.fixtures.gateways import StartGate
from tests.support.gateways.gate import Gate, read_all, read_until
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawOrigin

pytestmark = pytest.mark.threat("T-L5")

HOSTS = {"good.test": "127.0.0.1"}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: good.test\r\n\r\n"


class Careless(BaseHTTPRequestHandler):
    """Answers with the path that was asked for, and reads no body. PUT expects nothing, and refuses what does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_DELETE = do_OPTIONS = do_PROPFIND = answer  # noqa: N815 - as the library wants it

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()

    def handle_expect_100(self) -> bool:
        if self.command == "POST":
            return super().handle_expect_100()
        self.server.seen.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        self.send_response(417)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Careless)
        self.seen: list[str] = []
        self.connections = 0
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def process_request(self, request: object, client_address: object) -> None:
        self.connections += 1
        super().process_request(request, client_address)  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def gate(server: Server, start_gate: StartGate) -> Gate:
    return start_gate(allow=[f"good.test:{server.server_port}"], hosts=HOSTS)


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None, *, extra: str = "") -> bytes:
    where = f"good.test:{port}"
    framing = "" if body is None else f"Content-Length: {len(body)}\r\n"
    head = f"{method} http://{where}{path} HTTP/1.1\r\nHost: {where}\r\n{framing}{extra}\r\n"
    return head.encode() + (body or b"")


def answer_to(conn: socket.socket, request: bytes, method: str = "GET") -> tuple[int, bytes]:
    """One answer on a connection that stays open. Bodies are paths, so they begin with a slash."""
    conn.sendall(request)
    head = read_until(conn, b"\r\n\r\n")
    head, _, body = head.partition(b"\r\n\r\n")
    (length,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while method != "HEAD" and len(body) < length:
        body += conn.recv(length - len(body))
    return int(head[9:12]), body


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PROPFIND"])
def test_an_unread_body_is_nobodys_request(method: str, server: Server, gate: Gate) -> None:
    """Neither is it executed, nor does its answer reach another client."""
    port = server.server_port
    with gate.connect() as first, gate.connect() as second:
        status, _ = answer_to(first, ask(port, "/first", method, SMUGGLED), method)
        assert status == 200
        for number in range(3):
            assert answer_to(second, ask(port, f"/second-{number}")) == (200, b"/second-%d" % number)
        assert answer_to(first, ask(port, "/again")) == (200, b"/again")  # the client may go on with its own
    assert f"{method} /first" in server.seen
    assert not any("smuggled" in each for each in server.seen)


def test_an_unread_chunked_body_is_nobodys_request(server: Server, gate: Gate) -> None:
    port = server.server_port
    chunked = ask(port, "/first", extra="Transfer-Encoding: chunked\r\n")
    chunked += b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    with gate.connect() as first, gate.connect() as second:
        assert answer_to(first, chunked) == (200, b"/first")
        assert answer_to(second, ask(port, "/second")) == (200, b"/second")
    assert server.seen == ["GET /first", "GET /second"]


def test_control_the_server_does_execute_it(server: Server) -> None:
    """Asked by whoever keeps the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port)) as conn:
        conn.sendall(ask(server.server_port, "/first", body=SMUGGLED))
        read_until(conn, b"/smuggled")
    assert server.seen[1] == "GET /smuggled"


def test_control_other_requests_share_a_connection(server: Server, gate: Gate) -> None:
    port = server.server_port
    with gate.connect() as conn:
        assert answer_to(conn, ask(port, "/a"))[0] == 200
        assert answer_to(conn, ask(port, "/b", "POST", b"body"))[0] == 200
        assert answer_to(conn, ask(port, "/c", body=b""))[0] == 200  # a body of nothing is none
        assert answer_to(conn, ask(port, "/d"))[0] == 200
    assert server.connections == 1


def test_a_server_is_told_that_it_is_the_last_request(start_gate: StartGate) -> None:
    with RawOrigin() as origin:
        gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
        gate.send(ask(origin.port, "/", "DELETE", b"x", extra="TE: trailers\r\nConnection: TE\r\n"))
        gate.send(ask(origin.port, "/", "POST", b"x"))
        first, second = (bytes(raw).lower() for raw in origin.raw)
    assert b"\r\nconnection: close, te\r\n" in first
    assert b"connection: close" not in second


# Expect: 100-continue

EXPECT = "Expect: 100-continue\r\n"


def test_a_body_that_was_refused_beforehand_is_not_sent(server: Server, gate: Gate) -> None:
    """The client has not waited. Its server has answered for good and reads on: the body would be the next request."""
    port = server.server_port
    with gate.connect() as first, gate.connect() as second:
        first.sendall(ask(port, "/first", "PUT", SMUGGLED, extra=EXPECT))
        assert parse_answer(read_all(first), "PUT").status == 417
        assert answer_to(second, ask(port, "/second")) == (200, b"/second")
    assert server.seen == ["PUT /first", "GET /second"]


def test_a_body_that_is_wanted_is_sent_and_the_connection_kept(server: Server, gate: Gate) -> None:
    port = server.server_port
    with gate.connect() as conn:
        conn.sendall(ask(port, "/first", "POST", b"body", extra=EXPECT))
        answer = read_until(conn, b"/first")
        assert answer.startswith(b"HTTP/1.1 100 ")
        assert b"HTTP/1.1 200 " in answer
        assert answer_to(conn, ask(port, "/second")) == (200, b"/second")
    assert server.connections == 1


def test_a_body_waits_for_its_server(start_gate: StartGate) -> None:
    before: list[bytes] = []

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        before.append(bytes(raw.partition(b"\r\n\r\n")[2]))
        conn.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        while b"whole body" not in raw:
            origin.read(conn, raw)
        conn.sendall(OK)

    with RawOrigin(handle) as origin:
        gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
        assert gate.send(ask(origin.port, "/", "POST", b"whole body", extra=EXPECT)).endswith(b"hello")
    assert before == [b""]


def test_a_server_that_knows_no_expectations_gets_the_body_and_is_not_asked_again(start_gate: StartGate) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"whole body" not in raw:
            if not origin.read(conn, raw):
                return
        conn.sendall(OK)
        origin.read(conn, raw)

    with RawOrigin(handle) as origin:
        gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
        for _ in range(2):
            assert gate.send(ask(origin.port, "/", "POST", b"whole body", extra=EXPECT)).endswith(b"hello")
        assert origin.connections == 2


def test_a_connection_that_was_answered_before_all_was_sent_is_not_kept(start_gate: StartGate) -> None:
    """Even if all of the body is sent, and read, before the answer ends."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        if raw.startswith(b"POST"):
            conn.sendall(OK[:-2])
            while b"whole body" not in raw:
                origin.read(conn, raw)
            conn.sendall(OK[-2:])
            if not origin.read(conn, raw):
                return
        conn.sendall(OK)

    with RawOrigin(handle) as origin:
        gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
        whole = ask(origin.port, "/", "POST", b"whole body")
        with gate.connect() as conn:
            conn.sendall(whole[:-10])
            read_until(conn, b"hel")
            conn.sendall(whole[-10:])
            read_until(conn, b"lo")
        assert gate.send(ask(origin.port, "/")).endswith(b"hello")
        assert origin.connections == 2


def test_a_connection_that_was_answered_before_it_was_asked_is_not_kept(
    start_gate: StartGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dial_slowly(
        streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
    ) -> tuple[Channel, IPAddress]:
        channel, ip = await dial(streams, addresses, port, timeout_s)
        while not channel.buffer:  # noqa: ASYNC110 - what is waited for is the kernel
            await asyncio.sleep(0.001)
        return channel, ip

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        conn.sendall(OK)
        while origin.read(conn, raw):
            pass

    monkeypatch.setattr("exeat.gateway.gates.admission.dial", dial_slowly)
    with RawOrigin(handle) as origin:
        gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
        for _ in range(2):
            assert gate.send(ask(origin.port, "/")).endswith(b"hello")
        assert origin.connections == 2


# Inside TLS


def test_over_tls_it_is_the_same(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted()
    for method in (b"GET", b"POST"):
        for _ in range(2):
            with scene.open() as conn:
                conn.sendall(b"%b / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\n\r\nbody" % method)
                read_until(conn, b"hello")
    wait_until(lambda: scene.origin.connections == 3, "the connections")
    assert [b"connection: close" in bytes(raw).lower() for raw in scene.origin.raw] == [True, True, False]


def test_http2_has_no_connection_to_close() -> None:
    """A request is a stream there, so its body is nothing else, and the field is not for it."""
    text = b"GET / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    head, body, end = RequestReader().feed(text)
    assert isinstance(head, Head)
    assert b"connection" not in dict(head.headers)
    assert (body, isinstance(end, End)) == (b"body", True)
