"""Servers that fail in the middle: no answer looks whole that is not, nothing is sent twice that must not be (I1)."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.integration.failing import HOSTS, gate_to, post, request
from tests.support.clients.answers import assert_refused, parse_answer, read_to_end, reset
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import OK, Origin, answering

pytestmark = pytest.mark.usefixtures("quick_sweep")


# Servers that fail in the middle


@pytest.mark.parametrize("end", ["closes", "resets"])
@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\nX-Half: trai",
    ],
    ids=["counted", "chunked", "in the trailers"],
)
def test_a_cut_answer_never_looks_whole(
    begin: bytes, end: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """Where the server broke off the client sees a broken answer: too short, without its last chunk, or reset."""
    arrived = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(begin)
        assert arrived.wait(60)
        if end == "resets":
            reset(conn)

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    with gate.connect() as conn:
        conn.sendall(request(origin.port))
        raw = read_until(conn, b"part")
        arrived.set()
        more, proper_end = read_to_end(conn)
    answer = parse_answer(raw + more)
    assert answer.status == 200
    assert not answer.whole or not proper_end, "a cut answer was passed on as a whole one"
    wait_until(lambda: gate.lines()[-1]["event"] == "end", "the end line")
    assert gate.lines()[-1]["note"] in ("upstream-lost", "upstream-closed-early")


def test_a_reset_answer_without_a_length_never_looks_whole(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The end of the connection is the end of such an answer, so a reset must come through as a reset."""
    arrived = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        assert arrived.wait(60)
        reset(conn)

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    with gate.connect() as conn:
        conn.sendall(request(origin.port))
        raw = read_until(conn, b"part")
        arrived.set()
        more, proper_end = read_to_end(conn)
    assert not parse_answer(raw + more).whole or not proper_end


def test_a_malformed_chunk_cuts_the_answer(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Garbage between chunks is not passed on, and the answer stays unfinished."""
    origin = start_origin(
        answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nZZ\r\nnot a chunk\r\n0\r\n\r\n")
    )
    gate = gate_to(start_gate, origin.port)
    raw = gate.send(request(origin.port))
    assert b"not a chunk" not in raw
    assert raw == b"" or not parse_answer(raw).whole


def test_an_endless_response_head_is_502(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The gateway stops reading at its limit, and the server is cut off."""
    stopped = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        try:
            while True:
                conn.sendall(b"a" * 4_096)
        except OSError:
            stopped.set()

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    assert_refused(gate.send(request(origin.port)), 502, "http_protocol_error")
    assert stopped.wait(60)


def test_a_flood_of_interim_answers_is_502(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A few 1xx pass, a flood of them does not, and what the client got is valid HTTP all the same."""
    few = answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + OK)
    many = answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 10_000 + OK)
    origin, flood = start_origin(few), start_origin(many)
    gate = start_gate(allow=[f"good.test:{origin.port}", f"good.test:{flood.port}"], hosts=HOSTS)
    answer = parse_answer(gate.send(request(origin.port)))
    assert (answer.interim, answer.status) == ([103] * 3, 200)
    answer = parse_answer(gate.send(request(flood.port)))
    assert (len(answer.interim) <= 20, answer.status, answer.whole) == (True, 502, True)


def test_bytes_behind_an_answer_are_nobodys(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """More than Content-Length: the client gets the promised bytes, and the connection serves no other request."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while origin.read_head(conn, buffer) is not None:
            conn.sendall(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    for count in (1, 2, 3):
        assert parse_answer(gate.send(request(origin.port))).body == b"hello"
        assert origin.connections == count


def test_an_answer_that_nobody_asked_for_ends_an_idle_connection(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """Bytes that come while the connection waits for its next request are not taken for that request's answer."""
    speak, spoken = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while origin.read_head(conn, buffer) is not None:
            conn.sendall(OK)
            if speak.wait(10) and not spoken.is_set():
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
                spoken.set()

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    assert parse_answer(gate.send(request(origin.port))).body == b"hello"
    wait_until(lambda: gate.gateway.state.pool.size == 1, "the connection to be kept")
    speak.set()
    wait_until(lambda: gate.gateway.state.pool.size == 0, "the connection to be dropped")
    assert parse_answer(gate.send(request(origin.port))).body == b"hello"
    assert origin.connections == 2


def answer_first_only(conn: socket.socket, origin: Origin) -> None:
    """The first request of all is answered; every later one is read and then the connection closed."""
    buffer = bytearray()
    while origin.read_head(conn, buffer) is not None:
        if len(origin.heads) > 1:
            return
        conn.sendall(OK)


def test_a_get_on_a_connection_that_closes_is_tried_once_more(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """On a kept connection it may have been bad luck: one more try on a fresh one, and then 502."""
    origin = start_origin(answer_first_only)
    gate = gate_to(start_gate, origin.port)
    assert parse_answer(gate.send(request(origin.port))).status == 200
    assert_refused(gate.send(request(origin.port)), 502, "connection_terminated")
    assert len(origin.heads) == 3
    assert origin.connections == 2


def test_a_post_is_never_sent_twice(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The server may have acted on it before it closed: 502, and it is the client's choice to try again."""
    origin = start_origin(answer_first_only)
    gate = gate_to(start_gate, origin.port)
    assert parse_answer(gate.send(request(origin.port))).status == 200
    assert_refused(gate.send(post(origin.port, 4) + b"body"), 502, "connection_terminated")
    assert [head.split(b" ")[0] for head in origin.heads] == [b"GET", b"POST"]


def test_a_post_gets_a_fresh_connection_when_the_kept_one_has_closed(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """A server that closes after each answer costs no POST, and sees each of them once."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        origin.read_head(conn, buffer)
        while len(buffer) < 4:
            buffer += conn.recv(100)
        conn.sendall(OK)
        conn.close()
        closed.release()

    closed = threading.Semaphore(0)
    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port)
    for _ in range(20):
        assert parse_answer(gate.send(post(origin.port, 4) + b"body"), "POST").status == 200
        assert closed.acquire(timeout=60)
    assert len(origin.heads) == 20


def test_a_slow_server_is_waited_for(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A body that comes byte by byte, over longer than the idle limit in all, arrives whole."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n")
        for _ in range(40):
            conn.sendall(b"x")
            time.sleep(0.06)

    origin = start_origin(handle)
    gate = gate_to(start_gate, origin.port, idle_s=2)
    assert parse_answer(gate.send(request(origin.port))).body == b"x" * 40
