"""What flows inside TLS that is looked into: nothing is kept back, and nothing piles up."""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clients.answers import reset
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import DOORS, StartIntercepted, read_rest, read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins.packing import make_encoder
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawHandler, RawOrigin
from tests.support.origins.tls import say_goodbye

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: good.test\r\n"
MB = 1_000_000
# With a secret for the host both messages go through filters; without, they are passed on as they come.
SECRETS = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
both_ways = pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
every_door = pytest.mark.parametrize("door", DOORS)


def pattern(size: int) -> bytes:
    block = bytes(range(256)) * 4096
    return (block * (size // len(block) + 1))[:size]


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@both_ways
def test_a_large_upload_arrives_whole(
    secrets: dict[str, Any] | None, chunked: bool, start_intercepted: StartIntercepted
) -> None:
    """50 MB, through the filter and past it."""
    digest, size = hashlib.sha256(), 50 * MB
    body = pattern(MB)
    seen: list[int] = []

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        # Reads what is framed either way: the sizes of chunks are lines of their own.
        with conn.makefile("rb") as file:
            headers = []
            while (line := file.readline()) != b"\r\n":
                headers.append(line.lower())
            if b"transfer-encoding: chunked\r\n" in headers:
                while length := int(file.readline(), 16):
                    digest.update(file.read(length))
                    file.readline()
                file.readline()
            else:
                digest.update(file.read(size))
            seen.append(1)
            conn.sendall(OK)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
        conn.sendall(POST + framing + b"\r\n\r\n")
        for _ in range(50):
            conn.sendall(b"%x\r\n%b\r\n" % (MB, body) if chunked else body)
        if chunked:
            conn.sendall(b"0\r\n\r\n")
        assert read_reply(conn).status == 200
    assert digest.hexdigest() == hashlib.sha256(body * 50).hexdigest()
    (end,) = [each for each in scene.ends() if each["method"] == "POST"]
    assert end["sent"] >= size


@both_ways
def test_a_large_download_arrives_whole(secrets: dict[str, Any] | None, start_intercepted: StartIntercepted) -> None:
    body = pattern(MB)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (50 * MB))
        for _ in range(50):
            conn.sendall(body)
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        key = scene.placeholder() if secrets else b"x"
        conn.sendall(b"GET / HTTP/1.0\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % key)
        read, digest = 0, hashlib.sha256()
        head = read_until(conn, b"\r\n\r\n")
        data = head.partition(b"\r\n\r\n")[2]
        while True:
            digest.update(data)
            read += len(data)
            data = conn.recv(1 << 18)
            if not data:
                break
    assert read == 50 * MB
    assert digest.hexdigest() == hashlib.sha256(body * 50).hexdigest()


def push_until_blocked(conn: socket.socket, data: bytes) -> int:
    """Send until the peer takes no more for a moment; how much it took."""
    sent = 0
    conn.setblocking(False)
    while select.select([], [conn], [], 0.2)[1] and sent < 60 * MB:
        try:
            sent += conn.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            if not select.select([], [conn], [], 0.2)[1]:
                break
    return sent


@both_ways
@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_nobody_reads_is_not_collected(
    direction: str, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """Back-pressure both ways: a peer that does not read makes the other one wait, instead of filling our memory."""
    taken: list[int] = []
    over = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        if direction == "down":
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (100 * MB))
            taken.append(push_until_blocked(conn, bytes(64_000)))
        over.wait(20)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        if direction == "up":
            conn.sendall(POST + b"Content-Length: %d\r\n\r\n" % (100 * MB))
            taken.append(push_until_blocked(conn, bytes(64_000)))
        else:
            key = scene.placeholder() if secrets else b"x"
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % key)
            wait_until(lambda: bool(taken), "the server to be made to wait")
        over.set()
        reset(conn)
    assert 0 < taken[0] < 30 * MB


@every_door
@both_ways
def test_events_arrive_one_by_one(
    secrets: dict[str, Any] | None, door: str, start_intercepted: StartIntercepted
) -> None:
    """Server-sent events: each is here before the next is sent, whatever is looked for in them."""
    asked = threading.Semaphore(0)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(5):
            assert asked.acquire(timeout=60)
            conn.sendall(b"data: event %d\n\n" % number)
        say_goodbye(conn)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open(door=door) as conn:
        key = scene.placeholder() if secrets else b"x"
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % key)
        read_until(conn, b"\r\n\r\n")
        for number in range(5):
            asked.release()
            read_until(conn, b"data: event %d\n\n" % number)
        read_rest(conn)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_compressed_events_arrive_one_by_one(coding: str, start_intercepted: StartIntercepted) -> None:
    """Where there is a secret they are unpacked on the way, and do not wait for one another there either."""
    asked = threading.Semaphore(0)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        packer = make_encoder(coding.encode())
        conn.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n"
            "Content-Type: text/event-stream\r\n\r\n".encode()
        )
        for number in range(5):
            assert asked.acquire(timeout=60)
            part = packer.feed(b"data: event %d\n\n" % number)
            conn.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        part = packer.finish()
        conn.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(part), part))
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle, secrets=SECRETS)
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % scene.placeholder()
        )
        for number in range(5):
            asked.release()
            last = read_until(conn, b"data: event %d\n\n" % number)
        assert (last + read_rest(conn)).endswith(b"0\r\n\r\n")


def websocket(talk: Callable[[socket.socket, RawOrigin, bytearray], None]) -> RawHandler:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        )
        talk(conn, origin, raw)

    return handle


UPGRADE = (
    b"GET /chat HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\nX-Key: %b\r\n\r\n"
)


@every_door
@both_ways
def test_a_websocket_echoes(secrets: dict[str, Any] | None, door: str, start_intercepted: StartIntercepted) -> None:
    """Both ways, in small frames and large ones; compressed messages are not asked for where a secret is."""

    def talk(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while data := origin.read(conn, raw):
            conn.sendall(data)
        say_goodbye(conn)

    scene = start_intercepted(handler=websocket(talk), secrets=secrets)
    with scene.open(door=door) as conn:
        conn.sendall(UPGRADE % (scene.placeholder() if secrets else b"x"))
        head = read_until(conn, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        large = b"\x82\x7f" + (200_000).to_bytes(8, "big") + bytes(200_000)
        for frame in (b"\x82\x01a", b"\x82\x05frame", large, b"\x88\x04last"):
            conn.sendall(frame)
            received = 0
            while received < len(frame):
                received += len(conn.recv(65536))
            assert received == len(frame)
    assert (b"permessage-deflate" in scene.origin.everything) is (secrets is None)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert end["status"] == 101
    assert end["sent"] >= 200_010
    assert end["received"] >= 200_010


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_websocket_of_which_one_side_has_finished(who: str, start_intercepted: StartIntercepted) -> None:
    """Half-close through two TLS connections: the other side may still speak."""

    def talk(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        assert isinstance(conn, ssl.SSLSocket)
        try:
            if who == "client":
                while origin.read(conn, raw):
                    pass  # until the client has said goodbye
                conn.sendall(b"late words")
                say_goodbye(conn)
            else:
                say_goodbye(conn)
                conn.settimeout(10)
                while origin.read(conn, raw):
                    pass
        except OSError as error:
            raw += f" failed with {error}".encode()

    scene = start_intercepted(handler=websocket(talk))
    with scene.open() as conn:
        conn.sendall(UPGRADE % b"x")
        read_until(conn, b"\r\n\r\n")
        if who == "client":
            say_goodbye(conn)
            conn.settimeout(10)
            assert read_until(conn, b"late words").endswith(b"late words")
        else:
            assert conn.recv(100) == b""
            conn.sendall(b"late words")
            wait_until(lambda: b"late words" in scene.origin.everything, "the words to arrive")
        assert b"failed" not in scene.origin.everything
