"""WebSockets and answers on their way through a gateway with secrets: nothing leaks, and nothing is kept for ever."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest

from tests.support.clients.http2 import Http2Client
from tests.support.clients.talk import read_reply
from tests.support.clients.websocket import SWITCHED, UPGRADE, frame, speaking
from tests.support.gateways.intercepted import (
    REAL,
    WITH_KEY,
    StartIntercepted,
    for_good,
    longest_part,
    read_until,
)
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import RawOrigin, read_head, receive_all

pytestmark = pytest.mark.threat("T-H1")

HALF = REAL[: len(REAL) // 2]


HARMLESS = {
    "a frame that ends like a value begins": [frame(b"so far: " + HALF)],
    "a control frame": [frame(HALF, 0x89), frame(b"", 0x8A)],
    "fragments": [frame(HALF, 0x01), frame(b"and", 0x00), frame(b"", 0x80)],
    "a wide length": [frame(HALF, wide=True)],
    "a head in pieces": [bytes([each]) for each in frame(HALF * 8)],
    "masked": [struct.pack("!BB4s", 0x82, 0x80 | len(HALF), bytes(4)) + HALF],
    "many empty ones": [frame(b"", 0x8A) * 4_000 + frame(HALF)],
}


@pytest.mark.parametrize("parts", HARMLESS.values(), ids=HARMLESS)
def test_whole_frames_arrive_at_once(parts: list[bytes], start_intercepted: StartIntercepted) -> None:
    """The end of a frame is not waited behind, even if it may be the beginning of a value: no one would go on."""
    scene = start_intercepted(secrets=for_good(), handler=speaking(*parts))
    whole = b"".join(parts)
    with scene.open() as conn:
        conn.settimeout(5)
        conn.sendall(UPGRADE % scene.placeholder())
        received = read_until(conn, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
        while len(received) < len(whole):
            received += conn.recv(65536)
    assert received == whole


CUT = frame(HALF + REAL)
LEAKING = {
    "behind empty frames": [frame(b"", 0x8A) * 50 + frame(REAL)],
    "in a ping": [frame(REAL, 0x89)],
    "in a close": [frame(b"\x03\xe8" + REAL, 0x88)],
    "behind a length without end": [frame(b"", length=(1 << 63) - 1) + b"x" * 100, REAL],
    "in a length": [frame(b"")[:1], b"\x7f" + REAL[:8], REAL[8:]],
    "byte by byte": [bytes([each]) for each in frame(b"x" + REAL)],
    "garbage first": [b"HTTP/1.1 200 OK\r\n\r\n", REAL],
    "half, then all": [frame(HALF), frame(REAL)],
    "half, all of it in the next piece": [CUT[: len(HALF) + 5], CUT[len(HALF) + 5 :]],
    "with the head of the answer": [],
}


@pytest.mark.parametrize("how", LEAKING)
def test_no_frame_brings_a_value(how: str, start_intercepted: StartIntercepted) -> None:
    parts = LEAKING[how]

    def together(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        conn.sendall(SWITCHED + frame(REAL))
        receive_all(conn)

    scene = start_intercepted(secrets=for_good(), handler=speaking(*parts) if parts else together)
    with scene.open() as conn:
        conn.sendall(UPGRADE % scene.placeholder())
        received = receive_all(conn)
    assert received.startswith(b"HTTP/1.1 101")  # it was spoken to
    assert REAL not in received
    allowed = len(HALF) + 1 if how.startswith("half") else 8
    assert longest_part(received) < allowed
    assert [end["note"] for end in scene.ends() if end.get("status") == 101] == ["secret-in-response"]


# Answers that keep their length


@pytest.mark.parametrize("value", ["abcdefgh", "sk-" + "x" * 300, "tail+/=&<>\"'-value"])
@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("size", [70_000, 2_000])
def test_an_answer_that_keeps_its_length(
    value: str, http2: bool, size: int, start_intercepted: StartIntercepted
) -> None:
    """It began before anything was given out. The value stands at its very end, and across two pieces."""
    real = value.encode()
    given = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := read_head(conn, origin, raw):
            if b"/wait" not in head:
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                given.set()
                continue
            body = b"." * (size - len(real)) + real
            begun = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
            conn.sendall(begun + body[: size // 2])
            given.wait(5)
            conn.sendall(body[size // 2 : -4])
            time.sleep(0.05)
            conn.sendall(body[-4:])

    scene = start_intercepted(secrets=for_good(value=value), handler=handle)
    with scene.open(alpn=("h2",) if http2 else ("http/1.1",)) as slow, scene.open() as other:
        slow.settimeout(5)
        if http2:
            client = Http2Client(slow)
            number = client.begin(path=b"/wait")
            wait_until(lambda: scene.origin.connections > 0, "the server to be asked")
            time.sleep(0.2)
            other.sendall(WITH_KEY % scene.placeholder())
            assert read_reply(other).status == 200
            stream = client.wait(number)
            assert stream.ended
            body = bytes(stream.body)
            assert int(stream.value(b"content-length")) == len(body)
        else:
            slow.sendall(b"GET /wait HTTP/1.1\r\nHost: good.test\r\n\r\n")
            wait_until(lambda: scene.origin.connections > 0, "the server to be asked")
            time.sleep(0.2)
            other.sendall(WITH_KEY % scene.placeholder())
            assert read_reply(other).status == 200
            body = read_reply(slow).body
    assert len(body) == size
    assert body.startswith(b"..")
    assert real not in body


@pytest.mark.parametrize("last", [b"!", REAL[:1], HALF], ids=["no part of a value", "one letter", "half of one"])
def test_a_grpc_message_is_not_waited_with(last: bytes, start_intercepted: StartIntercepted) -> None:
    """In a call of two streams the server may say no more until the client has answered what it said."""
    message = b"a message that ends in " + last
    whole = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
    answered = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n"
        conn.sendall(head + b"%x\r\n%b\r\n" % (len(whole), whole))
        answered.wait(10)
        conn.sendall(b"0\r\n\r\n")

    scene = start_intercepted(secrets=for_good(), handler=handle)
    received = b""
    try:
        with scene.open() as conn:
            conn.settimeout(2)
            conn.sendall(WITH_KEY % scene.placeholder())
            with contextlib.suppress(TimeoutError):
                while last not in received.partition(b"ends in ")[2]:
                    received += conn.recv(65536)
    finally:
        answered.set()
    assert b"a message that ends in " in received
    assert last in received.partition(b"ends in ")[2]
