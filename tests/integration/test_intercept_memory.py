"""Bodies that are unpacked or read whole on account of secrets: as fast as the client takes them, and no more at a time
than there is memory for."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest

from exeat.gateway.limits import Limits
from tests.support.clients.answers import Answer, parse_answer, parse_answers
from tests.support.clients.http2 import Answer as Http2Answer
from tests.support.clients.http2 import Http2Client, Http2Server
from tests.support.gateways.intercepted import VALUE, Intercepted, StartIntercepted, answering, read_rest, read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls
from tests.support.origins.raw import RawHandler, RawOrigin

REAL = VALUE.encode()
MIB = 1 << 20
SECRETS: dict[str, dict[str, Any]] = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
AWS = {
    "AWS_ACCESS_KEY_ID": {"hosts": ["good.test private"], "value": "AKIAEXAMPLEEXAMPLE00"},
    "AWS_SECRET_ACCESS_KEY": {
        "hosts": ["good.test private"], "value": "not/a/real/key/0123456789", "aws_key_id": "AWS_ACCESS_KEY_ID",
    },
}  # fmt: skip
ASK = b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n"
PLAIN = b"".join(b"%07d " % each for each in range(500_000)) + bytes(4 * MIB) + REAL  # 8 MB


def used(scene: Intercepted) -> int:
    return scene.gate.gateway.state.memory.unpacking.used


def ask(scene: Intercepted) -> Answer:
    with scene.open() as conn:
        conn.sendall(ASK % scene.placeholder())
        return parse_answer(read_rest(conn))


def coded(coding: bytes, body: bytes, framing: str) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\n" % coding
    if framing == "counted":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if framing == "chunked":
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return head + b"\r\n" + body


CODINGS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress, b"deflate": zlib.compress, b"br": lambda data: bytes(brotli.compress(data, quality=5)),
}  # fmt: skip


@pytest.mark.parametrize("framing", ["counted", "chunked", "to the end"])
@pytest.mark.parametrize("coding", CODINGS)
def test_a_large_body_comes_whole_to_a_slow_client(
    coding: bytes, framing: str, start_intercepted: StartIntercepted
) -> None:
    """It is not read at all for a while, in which the server has long said all that it has to say and left."""
    scene = start_intercepted(secrets=SECRETS, handler=answering(coded(coding, CODINGS[coding](PLAIN), framing)))
    with scene.open() as conn:
        conn.sendall(ASK % scene.placeholder())
        begin = read_until(conn, b"\r\n\r\n")
        assert used(scene) > 0
        time.sleep(0.3)
        answer = parse_answer(begin + read_rest(conn))
    assert answer.whole
    assert answer.body == PLAIN.replace(REAL, scene.placeholder())
    scene.settle()
    assert used(scene) == 0
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] == [""]


def test_a_large_body_comes_whole_over_http2(start_intercepted: StartIntercepted) -> None:
    """And other streams have theirs meanwhile."""
    body = CODINGS[b"br"](PLAIN)
    server = Http2Server(lambda _: Http2Answer([(b":status", b"200"), (b"content-encoding", b"br")], body))
    scene = start_intercepted(secrets=SECRETS, handler=server, context=tls.server_context(alpn=["h2"]))
    client = Http2Client(scene.open(alpn=("h2",)))
    with client.conn:
        numbers = [client.begin(fields=[(b"x-key", scene.placeholder())]) for _ in range(3)]
        for number in numbers:
            assert bytes(client.wait(number).body) == PLAIN.replace(REAL, scene.placeholder())
    scene.settle()
    assert used(scene) == 0


def test_a_connection_is_used_again_behind_a_large_body(start_intercepted: StartIntercepted) -> None:
    """On both sides."""
    body = coded(b"gzip", gzip.compress(PLAIN), "counted")

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while True:
            while b"\r\n\r\n" not in raw:
                if not origin.read(conn, raw):
                    return
            raw.clear()
            conn.sendall(body)

    scene = start_intercepted(secrets=SECRETS, handler=handle)
    first = (ASK % scene.placeholder()).replace(b"Connection: close\r\n", b"")
    with scene.open() as conn:
        conn.sendall(first + first + ASK % scene.placeholder())
        answers = parse_answers(read_rest(conn), "GET", "GET", "GET")
    assert [each.body for each in answers] == [PLAIN.replace(REAL, scene.placeholder())] * 3
    assert scene.origin.connections == 1


@pytest.mark.parametrize("minor", [0, 1])
def test_a_short_body_that_unpacks_to_much_is_not_kept(minor: int, start_intercepted: StartIntercepted) -> None:
    """Of one that unpacks to little the length is told; for others no one waits for the end."""
    packed = gzip.compress(bytes(MIB))

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        conn.sendall(coded(b"gzip", packed, "counted")[:-10])
        wait_until(lambda: bool(begun), "the client has a head")
        conn.sendall(packed[-10:])
        tls.say_goodbye(conn)

    begun: list[bytes] = []
    scene = start_intercepted(secrets=SECRETS, handler=handle)
    with scene.open() as conn:
        conn.sendall((ASK % scene.placeholder()).replace(b"HTTP/1.1", b"HTTP/1.%d" % minor))
        begun.append(read_until(conn, b"\r\n\r\n"))
        answer = parse_answer(begun[0] + read_rest(conn))
    assert answer.body == bytes(MIB)
    assert ("transfer-encoding" in answer.headers) == (minor == 1)


@pytest.mark.parametrize(
    "body", [b"\x1f\x8b", b"not gzip at all", gzip.compress(b"abc")[:-1]], ids=["begun", "not gzip", "cut off"]
)
def test_a_short_body_that_cannot_be_read_is_answered(body: bytes, start_intercepted: StartIntercepted) -> None:
    """Its head was kept back, so there is someone to be told."""
    scene = start_intercepted(secrets=SECRETS, handler=answering(coded(b"gzip", body, "counted")))
    answer = ask(scene)
    assert (answer.status, answer.whole) == (502, True)
    (end,) = [end for end in scene.ends() if end["method"] == "GET"]
    assert (end["status"], end["note"]) == (502, "bad-response")
    assert used(scene) == 0


def test_a_response_that_there_is_no_memory_for(start_intercepted: StartIntercepted) -> None:
    handler = answering(coded(b"br", CODINGS[b"br"](bytes(9 * MIB)), "chunked"))
    scene = start_intercepted(secrets=SECRETS, handler=handler, limits=Limits(max_body_memory=2 * MIB))
    answer = ask(scene)
    assert (answer.status, answer.whole) == (503, True)
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] == ["out-of-memory"]
    assert used(scene) == 0


def test_a_request_that_there_is_no_memory_for(start_intercepted: StartIntercepted) -> None:
    """One to a place where values are put in. Nothing of it goes on with its placeholder unseen."""
    scene = start_intercepted(secrets=SECRETS, limits=Limits(max_body_memory=MIB))
    body = bytes(brotli.compress(bytes(2 * MIB) + scene.placeholder()))
    with scene.open() as conn:
        conn.sendall(
            b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        )
        assert parse_answer(read_rest(conn)).status == 503
    assert used(scene) == 0


def test_a_request_that_is_only_watched_goes_on(start_intercepted: StartIntercepted) -> None:
    """To a host without secrets, where all that could go unseen is a string that is worth nothing."""
    limits = Limits(max_body_memory=MIB)
    scene = start_intercepted(["other.test:80 private"], secrets=SECRETS, limits=limits)
    body = bytes(brotli.compress(b"some content"))
    with scene.gate.connect() as conn:
        conn.sendall(
            b"POST http://other.test/ HTTP/1.1\r\nHost: other.test\r\nContent-Encoding: br\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert parse_answer(read_rest(conn)).status == 200
    assert body in scene.plain.everything


@pytest.mark.parametrize("how", ["the client leaves", "the server leaves"])
def test_what_is_broken_off_gives_its_memory_back(how: str, start_intercepted: StartIntercepted) -> None:
    left: list[bool] = []

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        conn.sendall(coded(b"br", CODINGS[b"br"](PLAIN), "chunked")[:-50])
        wait_until(lambda: bool(left), "the server may leave")

    scene = start_intercepted(secrets=SECRETS, handler=handle)
    with scene.open() as conn:
        conn.sendall(ASK % scene.placeholder())
        read_until(conn, b"\r\n\r\n")
        assert used(scene) > 0
        if how == "the server leaves":
            left.append(True)
            wait_until(lambda: used(scene) == 0, "the memory is given back")
    wait_until(lambda: used(scene) == 0, "the memory is given back")
    left.append(True)


# Bodies that are read whole


def sign(scene: Intercepted, length: int) -> bytes:
    key = scene.placeholder("AWS_ACCESS_KEY_ID")
    return (
        b"POST / HTTP/1.1\r\nHost: good.test\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256"
        b" Credential=%b/20260101/eu-west-1/sts/aws4_request, SignedHeaders=host;x-amz-date, Signature=%b\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (key, b"0" * 64, length)
    )


def take_body(length: int) -> RawHandler:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while len(bytes(raw).partition(b"\r\n\r\n")[2]) < length and origin.read(conn, raw):
            pass
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        tls.say_goodbye(conn)

    return handle


def test_bodies_that_are_read_whole_share_their_memory(start_intercepted: StartIntercepted) -> None:
    """While one is held another is refused; then there is room again."""
    size = 600_000
    limits = Limits(max_body_memory=4 * 2 * size - 4_000)
    scene = start_intercepted(secrets=AWS, handler=take_body(size), limits=limits)
    body = b"a" * size
    with scene.open() as first:
        first.sendall(sign(scene, size) + body[:-1])
        wait_until(lambda: used(scene) >= 2 * (size - 1), "the body is held")
        with scene.open() as second:
            second.sendall(sign(scene, size) + body)
            assert parse_answer(read_rest(second), "POST").status == 503
        first.sendall(body[-1:])
        assert parse_answer(read_rest(first), "POST").status == 200
    wait_until(lambda: used(scene) == 0, "the memory is given back")
    with scene.open() as third:
        third.sendall(sign(scene, size) + body)
        assert parse_answer(read_rest(third), "POST").status == 200
    assert body in scene.origin.everything


@pytest.mark.parametrize("trickles", [False, True])
def test_a_body_that_is_read_whole_must_come_in_time(trickles: bool, start_intercepted: StartIntercepted) -> None:
    """Single bytes put nothing off."""
    scene = start_intercepted(secrets=AWS, limits=Limits(head_s=2))
    with scene.open() as conn:
        conn.sendall(sign(scene, 1_000) + b"a")
        conn.settimeout(0.05)
        received = b""
        for _ in range(200):
            try:
                received = conn.recv(65536)
                break
            except TimeoutError:
                if trickles:
                    conn.sendall(b"a")
        conn.settimeout(10)
        assert parse_answer(received + read_rest(conn), "POST").status == 408
    assert used(scene) == 0
    assert b"POST" not in scene.origin.everything
