"""What clients are told when something goes wrong, and that one bad peer never harms another (B4, B5, I1, I2)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from exeat.gateway.limits import Limits
from tests.integration.failing import HOSTS, MB, gate_to, request
from tests.support.clients.answers import assert_refused, parse_answer, reset, send_anyway
from tests.support.clients.talk import read_exactly, socks_dial
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Handler, Origin, answering

pytestmark = pytest.mark.usefixtures("quick_sweep")


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that is taken, so that no one else gets it, and on which no one listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose queue is full: connecting to it neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


# The gateway's own answers


def test_a_denial_is_403(start_gate: StartGate) -> None:
    """403 for a GET, a CONNECT and a HEAD, each a whole answer, and the HEAD's without a body."""
    gate = start_gate()
    for method in ("GET", "HEAD", "POST"):
        assert_refused(gate.send(request(80, method)), 403, "http_request_denied", method)
    answer = assert_refused(
        gate.send(b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n"), 403, "http_request_denied"
    )
    assert b"--allow good.test" in answer.body


@pytest.mark.parametrize(
    "raw",
    [
        b"GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"GET http://good.test/ HTTP/1.1\r\n\r\n",
        b"GET http://good.test/ HTTP/9.9\r\nHost: good.test\r\n\r\n",
        b"\x16\x03\x01 no door opens like this\r\n\r\n",
        b"GET http://good.test/ HTTP/1.1\nHost: good.test\n\n",
        b"CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"GET http://good.test/ HTTP/1.1\r\nHost: good",
    ],
    ids=["host differs", "no proxy form", "no host", "version", "not HTTP", "bare LF", "no port", "cut off"],
)
def test_what_is_malformed_is_400(raw: bytes, start_gate: StartGate) -> None:
    """400 and the end of the connection; the next client is served as ever."""
    gate = start_gate(allow=["good.test"], hosts=HOSTS)
    assert assert_refused(gate.send(raw), 400, "http_request_error").headers["connection"] == "close"
    assert_refused(gate.send(request(1)), 403, "http_request_denied")


def test_missing_credentials_are_407(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """407 names the scheme; wrong ones get it too; right ones pass and never reach the server."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, credentials=("user", "pass:word"))
    connect = f"CONNECT good.test:{origin.port} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode()
    wrong = "Proxy-Authorization: Basic dXNlcjp3cm9uZw==\r\n"
    for raw in (request(origin.port), request(origin.port, extra=wrong), connect):
        answer = assert_refused(gate.send(raw), 407, "http_request_denied")
        assert answer.headers["proxy-authenticate"] == 'Basic realm="exeat"'
    assert origin.connections == 0
    right = "Proxy-Authorization: Basic dXNlcjpwYXNzOndvcmQ=\r\n"
    assert parse_answer(gate.send(request(origin.port, extra=right))).body == b"hello"
    assert b"uthorization" not in origin.heads[0]


def test_missing_credentials_end_a_socks_connection(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """SOCKS5: no method is accepted without credentials, wrong ones fail, right ones pass (RFC 1929)."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, credentials=("user", "pass"))
    assert gate.send(b"\x05\x01\x00") == b"\x05\xff"
    assert gate.send(b"\x05\x01\x02\x01\x04user\x05wrong") == b"\x05\x02\x01\x01"
    wish = b"\x05\x01\x00\x03\x09good.test" + origin.port.to_bytes(2)
    with gate.connect() as conn:
        conn.sendall(b"\x05\x01\x02\x01\x04user\x04pass" + wish)
        assert read_exactly(conn, 14)[:6] == b"\x05\x02\x01\x00\x05\x00"
    reasons = [line["reason"] for line in gate.decisions() if line["verdict"] == "deny"]
    assert reasons == ["credentials", "credentials"]


@pytest.mark.parametrize(
    "extra", ["X: " + "a" * 5_000 + "\r\n", "".join(f"X-{n}: 1\r\n" for n in range(40))], ids=["bytes", "fields"]
)
def test_a_head_that_is_too_large_is_431(extra: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """431 for too many bytes and for too many fields; one below the limits passes."""
    origin = start_origin()
    gate = gate_to(start_gate, origin.port, max_header_bytes=4_096, max_headers=32)
    assert_refused(gate.send(request(origin.port, extra=extra)), 431, "http_request_error")
    small = "".join(f"X-{n}: 1\r\n" for n in range(30))
    assert parse_answer(gate.send(request(origin.port, extra=small))).status == 200
    assert origin.connections == 1


@pytest.mark.threat("T-I2")
def test_an_endless_head_costs_no_more_than_its_limit(start_gate: StartGate) -> None:
    """A megabyte without an end is answered as soon as the limit is passed, not read to its end."""
    gate = start_gate(allow=["good.test"], hosts=HOSTS)
    with gate.connect() as conn:
        raw = send_anyway(conn, b"GET http://good.test/" + b"a" * MB)
    assert_refused(raw, 431, "http_request_error")


def test_a_closed_port_is_502(start_gate: StartGate) -> None:
    """502 by HTTP and CONNECT, and SOCKS5's own word for it; allowed first, so the log has a decision and an end."""
    with closed_port() as port:
        gate = gate_to(start_gate, port)
        connect = f"CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode()
        for raw in (request(port), connect):
            assert_refused(gate.send(raw), 502, "connection_refused")
        with gate.connect() as conn:
            assert socks_dial(conn, b"good.test", port) == 5
    wait_until(lambda: len(gate.lines()) == 7, "the records")
    ends = [line for line in gate.lines() if line["event"] == "end"]
    assert [line["note"] for line in ends] == ["connection_refused"] * 3


def test_a_name_that_does_not_resolve_is_502(start_gate: StartGate) -> None:
    """502 with the DNS error type, and SOCKS5's "host unreachable"."""
    gate = start_gate(allow=["nowhere.test:8080"])
    raw = gate.send(request(8080, host="nowhere.test"))
    assert_refused(raw, 502, "dns_error")
    with gate.connect() as conn:
        assert socks_dial(conn, b"nowhere.test", 8080) == 4


def reset_at_once(conn: socket.socket, origin: Origin) -> None:
    origin.read_head(conn, bytearray())
    reset(conn)


BAD_SERVERS: dict[str, Handler] = {
    "resets": reset_at_once,
    "closes": answering(b""),
    "garbage": answering(b"\x00\x01garbage\r\n\r\n"),
    "garbage line": answering(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "cut off in the head": answering(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "two lengths": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "unasked upgrade": answering(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
}


@pytest.mark.parametrize("handler", BAD_SERVERS.values(), ids=BAD_SERVERS.keys())
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_does_not_answer_properly_is_502(
    method: str, handler: Handler, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """Nothing of the bad answer comes through, and the request is sent once."""
    origin = start_origin(handler)
    gate = gate_to(start_gate, origin.port)
    raw = gate.send(request(origin.port, method))
    assert parse_answer(raw, method).headers["proxy-status"].startswith("exeat; error=")
    assert parse_answer(raw, method).status == 502
    assert len(origin.heads) == 1


def test_a_silent_server_is_504(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """504 when nothing moves for as long as the limits say; the connection to the server is given up."""
    gone = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.recv(1)
        gone.set()

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port, response_s=0.2, idle_s=0.2)
    assert_refused(gate.send(request(origin.port)), 504, "http_response_timeout")
    assert gone.wait(60)


def test_the_time_to_the_first_byte_is_limited_by_itself(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """`response_s` counts even where `idle_s`, which is for transfers under way, is longer."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.recv(1)

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port, response_s=0.2)
    with gate.connect() as conn:
        conn.sendall(request(origin.port))
        assert_refused(read_all(conn), 504, "http_response_timeout")


def test_a_silent_dns_is_504(start_gate: StartGate) -> None:
    """504 by HTTP and "host unreachable" by SOCKS5; a name that does resolve is served meanwhile."""
    gate = start_gate(allow=["slow.test:8080"], limits=Limits(dns_s=0.2))

    async def never(name: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    gate.gateway.state.resolver._lookup = never
    assert_refused(gate.send(request(8080, host="slow.test")), 504, "dns_timeout")
    with gate.connect() as conn:
        assert socks_dial(conn, b"slow.test", 8080) == 4


def test_a_server_that_cannot_be_connected_to_is_504(start_gate: StartGate) -> None:
    """A queue that is full answers neither yes nor no: 504, and "TTL expired" by SOCKS5."""
    with deaf_port() as port:
        gate = gate_to(start_gate, port, connect_s=0.2)
        assert_refused(gate.send(request(port)), 504, "connection_timeout")
        with gate.connect() as conn:
            assert socks_dial(conn, b"good.test", port) == 6


def test_a_hanging_connection_disturbs_no_other(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """While fifty requests wait for a dead server, one for a live server is answered."""
    origin = start_origin()
    with deaf_port() as port, contextlib.ExitStack() as stack:
        gate = start_gate(allow=[f"good.test:{port}", f"good.test:{origin.port}"], hosts=HOSTS)
        for _ in range(50):
            stack.enter_context(gate.connect()).sendall(request(port))
        wait_until(lambda: len(gate.decisions()) == 50, "the hanging requests")
        assert parse_answer(gate.send(request(origin.port))).body == b"hello"
