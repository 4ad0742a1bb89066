"""Memory that bodies take on their way through a gateway with secrets: bounded, and returned by whatever ends them."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import time

import pytest

from tests.support.clients.http2 import Http2Client
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import (
    REAL,
    WITH_KEY,
    Intercepted,
    StartIntercepted,
    for_good,
)
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import RawHandler, RawOrigin, read_head, receive_all

pytestmark = pytest.mark.threat("T-H1")


# Memory that is lent


class Reader:
    """Answers on one connection, counted or in chunks."""

    def __init__(self, conn: socket.socket) -> None:
        self._file = conn.makefile("rb")

    def read(self) -> tuple[int, bytes]:
        status = int(self._file.readline().split()[1])
        lines = list(iter(self._file.readline, b"\r\n"))
        assert b"" not in lines[-1:], "cut off"
        head = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in lines}
        if b"transfer-encoding" not in head:
            return status, self._exactly(int(head[b"content-length"]))
        body = bytearray()
        while size := int(self._file.readline(), 16):
            body += self._exactly(size)
            self._file.readline()
        assert self._file.readline() == b"\r\n"
        return status, bytes(body)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        assert len(data) == size, "cut off"
        return data

    def close(self) -> None:
        self._file.close()


def ask(conn: socket.socket, *requests: bytes) -> list[bytes]:
    """The bodies of the answers."""
    reader = Reader(conn)
    with contextlib.closing(reader):
        conn.sendall(b"".join(requests))
        time.sleep(0.2)  # until it is full on the way
        answers = [reader.read() for _ in requests]
    assert {status for status, _ in answers} == {200}
    return [body for _, body in answers]


def used(scene: Intercepted) -> int:
    memory = scene.gate.gateway.state.memory
    return memory.unpacking.used + memory.watching.used + memory.whole.used


def zipped(size: int) -> bytes:
    return gzip.compress(bytes(size), 9)


def coded(body: bytes, rest: bytes = b"", *, length: int | None = None) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    return head % (len(body) if length is None else length) + body + rest


GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"


def answer_each(*answers: bytes) -> RawHandler:
    """One after the other, on however many connections."""
    left = list(answers)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while left and read_head(conn, origin, raw):
            conn.sendall(left.pop(0))

    return handle


@pytest.mark.threat("T-I4")
def test_two_unpacked_answers_on_one_connection(start_intercepted: StartIntercepted) -> None:
    """The second is asked for while the first, of which little became much, is still being unpacked."""
    big = zipped(8 << 20)
    small = gzip.compress(b"small" + REAL)
    scene = start_intercepted(secrets=for_good(), handler=answer_each(coded(big), coded(small), coded(small)))
    with scene.open() as conn:
        conn.settimeout(20)
        first, second = ask(conn, WITH_KEY % scene.placeholder(), GET)
        (third,) = ask(conn, GET)
    assert first == bytes(8 << 20)
    assert second == third == b"small" + scene.placeholder()
    assert scene.origin.connections == 1
    scene.settle()
    assert used(scene) == 0


@pytest.mark.threat("T-I4")
def test_a_client_that_leaves_while_much_is_unpacked(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=for_good(), handler=answer_each(*[coded(zipped(8 << 20))] * 4))
    for _ in range(3):
        with scene.open() as conn:
            conn.settimeout(5)
            conn.sendall(GET)
            assert conn.recv(1000).startswith(b"HTTP/1.1 200")
    with scene.open() as conn:  # and now one that stays
        conn.settimeout(20)
        assert ask(conn, GET) == [bytes(8 << 20)]
    scene.settle()
    assert used(scene) == 0


BROKEN = {
    "cut off": coded(zipped(1 << 20)[:-9]),
    "garbage": coded(b"no gzip at all"),
    "garbage behind": coded(zipped(1 << 20) + b"garbage"),
    "no end": coded(zipped(1 << 20), length=1 << 20),
}


@pytest.mark.threat("T-I4")
@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_broken_answers_give_their_memory_back(answer: bytes, start_intercepted: StartIntercepted) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        head = read_head(conn, origin, raw)
        conn.sendall(answer if b"GET / " in head else coded(gzip.compress(b"well")))

    scene = start_intercepted(secrets=for_good(), handler=handle)
    for _ in range(3):
        with scene.open() as conn:
            conn.sendall(GET)
            received = receive_all(conn)
            assert not received.endswith(b"0\r\n\r\n")
    with scene.open() as conn:
        conn.settimeout(5)
        conn.sendall(b"GET /well HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).body == b"well"
    scene.settle()
    assert used(scene) == 0


@pytest.mark.threat("T-I4")
def test_bodies_that_are_read_whole_give_their_memory_back(start_intercepted: StartIntercepted) -> None:
    """Cut off, refused, misused, answered before their end: nothing stays lent."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    scene = start_intercepted(secrets=for_good(where=["headers", "body"]), handler=handle)
    post = b"POST / HTTP/1.1\r\nHost: good.test\r\n%bContent-Length: %d\r\n\r\n"
    packed = gzip.compress(b"key=" + scene.placeholder())
    requests: list[bytes] = [
        post % (b"", 100_000) + bytes(50_000),
        post % (b"Content-Encoding: gzip\r\n", 60) + bytes(60),
        post % (b"Content-Encoding: gzip\r\n", len(packed)) + packed[:-4],
        b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n%b\r\n" % (len(packed) - 4, packed[:-4]),
    ]
    for request in requests:
        with scene.open() as conn:
            conn.sendall(request)
            time.sleep(0.1)
    with scene.open() as conn:
        conn.settimeout(5)
        other = gzip.compress(b"key=none")
        conn.sendall(post % (b"Content-Encoding: gzip\r\n", len(other)) + other)
        assert read_reply(conn).status == 200
    scene.settle()
    assert used(scene) == 0


def test_a_slow_client_gets_all_until_the_end_of_the_connection(start_intercepted: StartIntercepted) -> None:
    """The server has closed; the client reads later; the value stands across two steps of the decoder."""
    plain = bytearray(6 << 20)
    step = 256 << 10
    for at in range(step - 5, len(plain) - 100, step):
        plain[at : at + len(REAL)] = REAL
    packed = gzip.compress(bytes(plain), 9)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + packed)
        with contextlib.suppress(OSError):
            assert isinstance(conn, ssl.SSLSocket)
            conn.unwrap()

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.settimeout(20)
        (body,) = ask(conn, WITH_KEY % scene.placeholder())
    assert REAL not in body
    assert body == bytes(plain).replace(REAL, scene.placeholder())
    scene.settle()
    assert used(scene) == 0


def test_an_http2_client_that_takes_its_time(start_intercepted: StartIntercepted) -> None:
    """Its window is full while more is unpacked. One stream is reset then, the other taken to its end."""
    scene = start_intercepted(secrets=for_good(), handler=answer_each(*[coded(zipped(3 << 20))] * 3))
    with scene.open(alpn=("h2",)) as conn:
        conn.settimeout(20)
        client = Http2Client(conn)
        client.acknowledges = False
        given_up = client.begin()
        while len(client.streams[given_up].body) < 60_000:
            client.receive()
        client.h2.reset_stream(given_up)
        client.flush()
        client.acknowledges = True
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        taken = client.ask()
    assert taken.ended
    assert taken.body == bytes(3 << 20)
    scene.settle()
    assert used(scene) == 0


@pytest.mark.threat("T-I4")
def test_memory_can_be_had_again_once_it_was_given_back(start_intercepted: StartIntercepted) -> None:
    """Answers that stall take all of it; others are told 503. When the stalled are gone, all is well again."""
    unended = zipped(1 << 20)[:-9]

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        head = read_head(conn, origin, raw)
        if b"/stall" in head:
            conn.sendall(coded(unended, length=1 << 20))
            receive_all(conn)
        else:
            conn.sendall(coded(gzip.compress(b"well")))

    scene = start_intercepted(secrets=for_good(), handler=handle)
    scene.gate.gateway.state.memory.set_limit(200 << 10)
    well = b"GET /well HTTP/1.1\r\nHost: good.test\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            conn = stack.enter_context(scene.open())
            conn.settimeout(10)
            conn.sendall(b"GET /stall HTTP/1.1\r\nHost: good.test\r\n\r\n")
            assert conn.recv(1)
        with scene.open() as other:
            other.settimeout(10)
            other.sendall(well)
            assert read_reply(other).status == 503
    wait_until(lambda: used(scene) == 0, "all to be given back")
    with scene.open() as other:
        other.settimeout(10)
        assert ask(other, well) == [b"well"]


@pytest.mark.threat("T-I4")
@pytest.mark.parametrize("count", [1, 2])
def test_a_request_that_is_refused_for_want_of_memory_leaves_none_taken(
    count: int, start_intercepted: StartIntercepted
) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    scene = start_intercepted(secrets=for_good(where=["headers", "body"]), handler=handle)
    scene.gate.gateway.state.memory.set_limit(64 << 10)
    post = b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n"
    for _ in range(count):
        with scene.open() as conn:
            conn.settimeout(10)
            conn.sendall(post % 40_000 + bytes(40_000))
            assert read_reply(conn).status == 503
    with scene.open() as conn:
        conn.settimeout(10)
        conn.sendall(post % 1_000 + bytes(1_000))
        assert read_reply(conn).status == 200
    scene.settle()
    assert used(scene) == 0
