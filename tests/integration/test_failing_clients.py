"""Clients that fail, or read slowly: no one else notices, and they cost little (B4, B5, I1, I2)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from tests.integration.failing import MB, gate_to, post, request
from tests.support.clients.answers import assert_refused, parse_answer, parse_answers, reset, send_anyway
from tests.support.clients.talk import connect_dial, read_exactly, read_reply
from tests.support.fixtures.gateways import StartGate, StartOrigin, StartServing
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS as SERVE_HOSTS
from tests.support.origins.plain import OK, Origin

pytestmark = pytest.mark.usefixtures("quick_sweep")


# Clients that fail


@pytest.mark.threat("T-I1")
def test_a_head_that_takes_too_long_is_408(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Bytes that keep coming do not buy time, and other clients are served meanwhile."""
    origin = start_origin()
    gate = gate_to(start_gate, origin.port, head_s=0.5)
    with gate.connect() as slow:
        slow.sendall(b"GET http://good.test/ HTTP/1.1\r\n")
        assert parse_answer(gate.send(request(origin.port))).body == b"hello"
        with contextlib.suppress(OSError):
            for _ in range(500):
                slow.sendall(b"X: 1\r\n")
                slow.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1, socket.MSG_PEEK):
                        break
        slow.settimeout(10)
        assert_refused(read_all(slow), 408, "http_request_error")


@pytest.mark.threat("T-I1")
def test_a_slow_socks_greeting_is_cut_off(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The other door has the same limit, and a client that has left is no defect."""
    origin = start_origin()
    gate = gate_to(start_gate, origin.port, head_s=0.2)
    with gate.connect() as conn:
        conn.sendall(b"\x05\x01")
        assert read_all(conn) == b""


@pytest.mark.parametrize("limit", ["first_byte_s", "keep_alive_s"])
def test_a_silent_client_is_closed(limit: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Before its first byte, and between two requests."""
    origin = start_origin()
    gate = gate_to(start_gate, origin.port, **{limit: 0.2})
    with gate.connect() as conn:
        if limit == "keep_alive_s":
            conn.sendall(request(origin.port))
            assert read_reply(conn).body == b"hello"
        assert read_all(conn) == b""


@pytest.mark.threat("T-I3")
@pytest.mark.parametrize("through", ["http", "connect", "socks"])
def test_a_client_that_leaves_while_its_name_is_looked_up_is_no_defect(through: str, start_gate: StartGate) -> None:
    """Nothing is written to a connection that is gone; the server that was found is let go."""
    asked, go_on = threading.Event(), asyncio.Event()
    gate = start_gate(allow=["slow.test:* private"])

    async def wait(name: str) -> Sequence[str]:
        asked.set()
        await go_on.wait()
        return ["127.0.0.1"]

    async def release() -> None:
        go_on.set()

    gate.gateway.state.resolver._lookup = wait
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        conn = gate.connect()
        conn.sendall(
            {
                "http": request(port, host="slow.test"),
                "connect": f"CONNECT slow.test:{port} HTTP/1.1\r\nHost: slow.test\r\n\r\n".encode(),
                "socks": b"\x05\x01\x00\x05\x01\x00\x03\x09slow.test" + port.to_bytes(2),
            }[through]
        )
        assert asked.wait(60)
        reset(conn)
        wait_until(lambda: all(s.client.closed for s in list(gate.gateway.state.sessions)), "the reset to be seen")
        gate.call(release())
        wait_until(lambda: gate.gateway.counters.open_connections == 0, "the session to end")
    assert gate.gateway.counters.internal_errors == 0


def test_an_upload_that_is_reset_reaches_nobody_as_a_whole(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The server sees the connection end in the middle of the body, chunked or counted, and the log says why."""
    received: list[bytes] = []
    begun, ended = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        origin.read_head(conn, buffer)
        try:
            while b"part" not in buffer:
                buffer += conn.recv(1_000)
            begun.set()
            while data := conn.recv(1_000):
                buffer += data
        except OSError:
            pass
        received.append(bytes(buffer))
        ended.set()

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    for raw in (
        post(origin.port, 1_000) + b"part",
        request(origin.port, "POST", "Transfer-Encoding: chunked\r\n") + b"4\r\npart\r\n",
    ):
        begun.clear()
        ended.clear()
        conn = gate.connect()
        conn.sendall(raw)
        assert begun.wait(60)
        reset(conn)
        assert ended.wait(60)
    assert [body.replace(b"4\r\n", b"").replace(b"\r\n", b"") for body in received] == [b"part", b"part"]
    wait_until(lambda: [line["event"] for line in gate.lines()].count("end") == 2, "the end lines")
    assert {line["note"] for line in gate.lines() if line["event"] == "end"} == {"client-left"}


def test_a_client_that_has_finished_sending_still_gets_its_answer(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """Half-close: a GET and a POST, though the server answers only after the client's end was seen."""
    go_on = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while origin.read_head(conn, buffer) is not None:
            while origin.heads[-1].startswith(b"POST") and len(buffer) < 4:
                buffer += conn.recv(100)
            del buffer[:4]
            go_on.wait(10)
            conn.sendall(OK)

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    for raw in (request(origin.port), post(origin.port, 4) + b"body"):
        go_on.clear()
        with gate.connect() as conn:
            conn.sendall(raw)
            conn.shutdown(socket.SHUT_WR)
            wait_until(lambda: any(s.client.eof for s in list(gate.gateway.state.sessions)), "the client's end")
            go_on.set()
            assert parse_answer(read_all(conn)).body == b"hello"


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_leaves_takes_its_server_connection_along(
    how: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """In the middle of a download: the server can send no more, and the gateway holds nothing for it."""
    stopped = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                conn.sendall(b"1000\r\n" + bytes(4_096) + b"\r\n")
        except OSError:
            stopped.set()

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    conn = gate.connect()
    conn.sendall(request(origin.port))
    assert len(read_exactly(conn, 100_000)) == 100_000
    if how == "closes":
        conn.close()
    else:
        reset(conn)
    assert stopped.wait(60)
    wait_until(lambda: gate.gateway.counters.open_connections == 0, "the session to end")
    assert gate.gateway.state.pool.size == 0


@pytest.mark.parametrize("framing", ["counted", "chunked"])
@pytest.mark.parametrize("manners", ["waits", "leaves"])
def test_an_early_answer_to_a_large_upload_arrives(
    manners: str, framing: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """A server that says 413 after the head is heard although the client is still sending.

    One that closes at once, without reading on, resets the connection, and the reset may overtake its answer
    (RFC 9112 section 9.6). Then the client is told 502, which is a whole answer too.
    """

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        if manners == "waits":
            conn.shutdown(socket.SHUT_WR)
            while conn.recv(65_536):
                pass

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    size = 20 * MB
    with gate.connect() as conn:
        if framing == "counted":
            raw = send_anyway(conn, post(origin.port, size) + bytes(size))
        else:
            head = request(origin.port, "POST", "Transfer-Encoding: chunked\r\n")
            raw = send_anyway(conn, head + b"%x\r\n" % size + bytes(size))
    answer = parse_answer(raw)
    if manners == "waits":
        assert (answer.status, answer.body) == (413, b"big")
    assert answer.whole
    assert answer.status in (413, 502)


# Memory


@pytest.mark.parametrize("through", ["http", "connect"])
def test_a_slow_reader_costs_little_memory(through: str, serve: StartServing, start_origin: StartOrigin) -> None:
    """B5: of 100 MB that a client does not read the gateway holds less than 32 MB, and loses none of it."""
    size = 100 * MB
    block = bytes(MB)
    sent = 0

    def handle(conn: socket.socket, origin: Origin) -> None:
        nonlocal sent
        if through == "http":
            origin.read_head(conn, bytearray())
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // MB):
            conn.sendall(block)
            sent += MB

    origin = start_origin(handle)
    serving = serve("--allow", f"good.test:{origin.port}", *SERVE_HOSTS)
    before = serving.resident_kb
    with serving.connect(30) as conn:
        if through == "http":
            conn.sendall(request(origin.port))
        else:
            assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        seen = -1
        while seen != sent or sent == 0:  # until the server is held up
            seen = sent
            time.sleep(0.2)
        assert sent < size, "the whole answer fitted somewhere, so this shows nothing"
        assert serving.resident_kb - before < 32 * 1024
        received = 0
        if through == "http":
            read_until_head(conn)
        while received < size and (data := conn.recv(MB)):
            received += len(data)
    assert received == size
    assert serving.resident_kb - before < 32 * 1024


def read_until_head(conn: socket.socket) -> None:
    """Read a response's head, byte by byte, so that its body stays in the socket."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += conn.recv(1)


def test_pipelined_answers_stay_apart_when_one_fails(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A denial in the middle of a pipeline is one whole answer among others."""
    origin = start_origin()
    gate = gate_to(start_gate, origin.port)
    raw = gate.send(request(origin.port) + request(origin.port, host="evil.test") + request(origin.port))
    assert [answer.status for answer in parse_answers(raw, "GET", "GET", "GET")] == [200, 403, 200]
