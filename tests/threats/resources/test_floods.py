"""One client, or one server, that sends what costs the most to read: everybody else has a turn all the same.

What is counted is how much of a flood is handled between two turns of the gateway's loop. Times are in
`python -m bench.floods`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from exeat.gateway.gates.session import Session
from exeat.gateway.http2.frames import Intake
from tests.support.clients.pressure import HOSTS, ask, flood, most_between_turns
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate, read_all, read_until
from tests.support.gateways.http2_peers import Pipe, run, upstream
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import OK, Origin
from tests.support.origins.raw import RawOrigin, keep_silent

pytestmark = pytest.mark.threat("T-L3")

CHUNKED = "Transfer-Encoding: chunked\r\n"
TINY = {"one byte": b"1\r\nx\r\n", "an empty extension": b"1;\r\nx\r\n", "an extension": b"1;a=b\r\nx\r\n"}
MANY = 100_000
# What may be decoded of one connection in one turn, and some bytes of framing.
CHUNKS_A_TURN = 600


def sessions(gate: Gate) -> list[Session]:
    return list(gate.gateway.state.sessions)


def sent_up(gate: Gate) -> int:
    return sum(session.upstream.sent for session in sessions(gate) if session.upstream is not None)


@contextlib.contextmanager
def busy(gate: Gate) -> Iterator[None]:
    """While the block runs the loop does nothing else, so that what is sent is all there when it looks."""
    begun, release = threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        release.wait(20)

    waiting = asyncio.run_coroutine_threadsafe(block(), gate.gateway._loop)
    begun.wait(10)
    try:
        yield
    finally:
        release.set()
        waiting.result(20)


def fill(conn: socket.socket, block: bytes) -> int:
    """Send until the kernel takes no more."""
    conn.setblocking(False)
    sent, until = 0, time.monotonic() + 5
    try:
        while time.monotonic() < until:
            sent += conn.send(block)
    except BlockingIOError:
        pass
    conn.settimeout(10)
    return sent


class Swallow:
    """A server that counts the payload it is sent."""

    def __init__(self) -> None:
        self._parts: list[int] = []

    @property
    def got(self) -> int:
        return sum(self._parts)

    def __call__(self, conn: socket.socket, origin: Origin) -> None:
        rest = bytearray()
        origin.read_head(conn, rest)
        self._parts.append(rest.count(b"x"))
        while data := conn.recv(1 << 20):
            self._parts.append(data.count(b"x"))


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("chunk", TINY.values(), ids=TINY)
def test_a_clients_tiny_chunks_leave_room_for_others(
    chunk: bytes, clients: int, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    swallow = Swallow()
    origin = start_origin(swallow)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with most_between_turns(gate, lambda: sent_up(gate)) as most:
        flood(gate, ask(origin, method="POST", extra=CHUNKED), chunk * (MANY // clients), clients)
    wait_until(lambda: swallow.got == MANY // clients * clients, "all of it to arrive")  # slowly, but whole
    assert 0 < most[0] <= CHUNKS_A_TURN * clients


@pytest.mark.parametrize("chunk", TINY.values(), ids=TINY)
def test_a_servers_tiny_chunks_leave_room_for_others(
    chunk: bytes, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    def pour(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * MANY + b"0\r\n\r\n")
        conn.recv(1)

    origin = start_origin(pour)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with most_between_turns(gate, lambda: sum(session.client.sent for session in sessions(gate))) as most:
        answer = gate.send(ask(origin))
    assert answer.count(b"x") == MANY
    assert answer.endswith(b"0\r\n\r\n")
    assert 0 < most[0] <= CHUNKS_A_TURN


def test_a_body_that_ends_with_tiny_chunks_is_followed_by_the_next_request(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """What is put off to later turns is the same request, and what comes behind it the next."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        got = bytearray()
        for end in (b"0\r\n\r\n", b"\r\n\r\n"):
            while end not in got:
                got += conn.recv(65_536)
            del got[: got.index(end) + len(end)]
            conn.sendall(OK)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    whole = ask(origin, method="POST", extra=CHUNKED) + b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n" + ask(origin)
    with gate.connect() as conn:
        conn.sendall(whole)
        conn.shutdown(socket.SHUT_WR)  # the end, too, is not seen before all of it was read
        assert read_all(conn).count(b"hello") == 2


def test_a_server_that_leaves_right_behind_tiny_chunks_has_answered(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    def handle(conn: socket.socket, origin: Origin) -> None:
        head = origin.read_head(conn, bytearray()) or b""
        end = b"" if b"/cut" in head else b"0\r\n\r\n"
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 3_000 + end)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    whole, cut = gate.send(ask(origin)), gate.send(ask(origin, "/cut"))
    assert (whole.count(b"x"), whole.endswith(b"0\r\n\r\n")) == (3_000, True)
    assert (cut.count(b"x"), cut.endswith(b"0\r\n\r\n")) == (3_000, False)


def test_framing_without_content_is_refused_both_ways(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Extensions are dropped, so a sender could make us read without end for next to nothing."""
    padded = (b"1;%b\r\nx\r\n" % (b"e" * 1_000)) * 100

    def pour(conn: socket.socket, origin: Origin) -> None:
        head = origin.read_head(conn, bytearray()) or b""
        if head.startswith(b"GET"):
            conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + padded + b"0\r\n\r\n")
        conn.recv(1 << 20)

    origin = start_origin(pour)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    assert gate.send(ask(origin, method="POST", extra=CHUNKED) + padded).startswith(b"HTTP/1.1 400")
    assert not gate.send(ask(origin)).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("how", ["body", "tunnel"])
def test_two_reads_of_a_connection_are_enough_for_a_turn(
    how: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """uvloop would take some megabytes of one connection before it looks at the next."""
    origin = start_origin(lambda conn, origin: keep_reading(conn))
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        if how == "body":
            conn.sendall(ask(origin, method="POST", extra=f"Content-Length: {1 << 40}\r\n"))
            wait_until(lambda: origin.connections == 1, "the request to go on")
        else:
            conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port)
            read_until(conn, b"\r\n\r\n")
            conn.sendall(b"\x80")
        with most_between_turns(gate, lambda: received(gate)) as most:
            for _ in range(4):
                with busy(gate):
                    fill(conn, bytes(65_536))
    # In a tunnel: a pipe full, behind the read after which the kernel took over.
    assert 0 < most[0] <= (2 * 262_144 if how == "body" else (1 << 20) + 65_536)


def received(gate: Gate) -> int:
    for session in sessions(gate):
        session.client.count_moved()
    return sum(session.client.received for session in sessions(gate))


def keep_reading(conn: socket.socket) -> None:
    while conn.recv(1 << 20):
        pass


def test_empty_lines_are_no_request(start_gate: StartGate, start_origin: StartOrigin) -> None:
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    assert gate.send(b"\r\n" * 3 + ask(origin)).endswith(b"hello")
    assert gate.send(b"\r\n" * 5_000 + ask(origin)).startswith(b"HTTP/1.1 400")


# Inside TLS


def test_tiny_records_leave_room_for_others(start_intercepted: StartIntercepted) -> None:
    """Each costs as much as a large one to decrypt."""
    scene = start_intercepted(handler=keep_silent)
    gate = scene.gate
    with scene.open() as conn:
        conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 100000\r\n\r\n")
        wait_until(lambda: scene.origin.received > 0, "the request to go on")
        with most_between_turns(gate, lambda: sum(session.client.received for session in sessions(gate))) as most:
            with busy(gate):
                for _ in range(4_000):
                    conn.send(b"x")
            wait_until(lambda: scene.origin.everything.count(b"x") == 4_000, "all of them to arrive")
    assert 0 < most[0] <= 128


def test_little_is_read_at_a_time_of_who_sends_much_and_says_little(start_intercepted: StartIntercepted) -> None:
    """OpenSSL handles records that carry nothing, key updates for example, in one go, however many there are."""
    scene = start_intercepted(handler=keep_silent)
    gate = scene.gate

    def size_after(block: bytes, count: int) -> int:
        with scene.open() as conn:
            conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 1000000\r\n\r\n")
            wait_until(lambda: sent_up(gate) > 0, "the request to go on")
            with busy(gate):
                for _ in range(count):
                    conn.send(block)
            wait_until(lambda: sent_up(gate) >= len(block) * count, "all of it to go on")
            (session,) = sessions(gate)
            size = len(session.client.transport.get_buffer(-1))  # type: ignore[attr-defined]
        wait_until(lambda: not sessions(gate), "the connection to end")
        return size

    assert size_after(b"x", 6_000) == 4_096
    assert size_after(bytes(16_384), 10) == 112 * 1024


def test_tiny_frames_of_a_websocket_leave_room_for_others(start_intercepted: StartIntercepted) -> None:
    """Where the end of each frame must be found, in what a server sends."""
    frame, many = b"\x82\x01x", 40_000

    def serve(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        )
        origin.read(conn, raw)
        conn.sendall(frame * many)
        origin.read(conn, raw)

    scene = start_intercepted(handler=serve, secrets={"KEY": {"hosts": ["good.test private"], "where": ["headers"]}})
    gate = scene.gate
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nAuthorization: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % scene.placeholder()
        )
        read_until(conn, b"\r\n\r\n")
        with most_between_turns(gate, lambda: sum(session.client.sent for session in sessions(gate))) as most:
            conn.sendall(b"\x81\x80mask")
            got = 0
            while got < len(frame) * many:
                got += len(conn.recv(65_536))
    assert 0 < most[0] <= 2 * 4_096 + len(frame)  # the beginning of a frame waits for its end


def test_tiny_frames_of_http2_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]
    following = Intake.next

    def count(intake: Intake) -> Any:
        taken[0] += 1
        return following(intake)

    monkeypatch.setattr(Intake, "next", count)

    async def main() -> None:
        async with upstream() as (_, server):
            assert isinstance(server.pipe, Pipe)
            ping = struct.pack(">I", 8)[1:] + b"\x06" + bytes(13)
            most = taken[0] = 0
            server.pipe.channel.data_received(ping * 1_000)
            for _ in range(100):
                most, taken[0] = max(most, taken[0]), 0
                await asyncio.sleep(0)
            assert 0 < most <= 33

    run(main)
