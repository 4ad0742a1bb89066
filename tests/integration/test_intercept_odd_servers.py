"""Interception of servers that answer oddly."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from typing import Any

import pytest

from tests.support.clients.answers import parse_answer, reset
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import VALUE, Intercepted, StartIntercepted, read_rest
from tests.support.origins import tls
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawHandler, RawOrigin

REAL = VALUE.encode()
GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
SECRETS: dict[str, dict[str, Any]] = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}


def sending(*parts: bytes) -> RawHandler:
    """Answer every request with these parts, each in a record of its own."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            for part in parts:
                conn.sendall(part)

    return handle


def ask_with_key(scene: Intercepted) -> bytes:
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % scene.placeholder()
        )
        return read_rest(conn)


# Odd answers of servers


def member(data: bytes) -> bytes:
    return gzip.compress(data)


raw_deflate = zlib.compressobj(wbits=-15)
ODD = {
    "two gzip members": (b"Content-Encoding: gzip", member(b"<" + REAL[:9]) + member(REAL[9:] + b">")),
    "upper case": (b"Content-Encoding: GZIP", member(b"<%b>" % REAL)),
    "x-gzip": (b"Content-Encoding: x-gzip", member(b"<%b>" % REAL)),
    "deflate without its frame": (
        b"Content-Encoding: deflate",
        raw_deflate.compress(b"<%b>" % REAL) + raw_deflate.flush(),
    ),
    "two codings": (b"Content-Encoding: gzip, gzip", member(member(b"<%b>" % REAL))),
    "two codings in two lines": (b"Content-Encoding: gzip\r\ncontent-encoding: gzip", member(member(b"<%b>" % REAL))),
    "identity": (b"Content-Encoding: identity", b"<%b>" % REAL),
    "a name in other letters": (b"cOnTeNt-EnCoDiNg:gzip", member(b"<%b>" % REAL)),
}


@pytest.mark.parametrize("framing", ["counted", "chunked", "until the end"])
@pytest.mark.parametrize(("lines", "body"), ODD.values(), ids=ODD.keys())
def test_a_value_is_found_however_the_coding_is_written(
    lines: bytes, body: bytes, framing: str, start_intercepted: StartIntercepted
) -> None:
    """D5: one way past the search would be enough."""
    head = b"HTTP/1.1 200 OK\r\n%b\r\n" % lines
    if framing == "counted":
        response = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    elif framing == "chunked":
        response = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        response = head + b"\r\n" + body

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(response)
        if framing == "until the end":
            tls.say_goodbye(conn)
        else:
            origin.read(conn, raw)

    scene = start_intercepted(secrets=SECRETS, handler=handle)
    answer = parse_answer(ask_with_key(scene))
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == b"<%b>" % scene.placeholder()
    assert "content-encoding" not in answer.headers or answer.headers["content-encoding"] == "identity"


@pytest.mark.parametrize(
    "body", [b"", member(b"x" * 5000)[:-4], member(b"x") + b"garbage"], ids=["empty", "cut", "more"]
)
def test_a_compressed_answer_that_is_not_whole_never_looks_whole(
    body: bytes, start_intercepted: StartIntercepted
) -> None:
    """An empty one is whole; one that lacks its end, or has something behind it, is not."""
    response = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    scene = start_intercepted(secrets=SECRETS, handler=sending(response))
    try:
        answer = parse_answer(ask_with_key(scene))
        assert answer.status == 502 or (answer.whole is (not body) and answer.status == 200)
    except OSError:
        assert body


@pytest.mark.threat("T-I4")
def test_a_bomb_of_a_server_is_stopped(start_intercepted: StartIntercepted) -> None:
    """What unpacks without end is cut, and never looks whole."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    response = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n%b" % (len(bomb), bomb)
    scene = start_intercepted(secrets=SECRETS, handler=sending(response))
    try:
        answer = parse_answer(ask_with_key(scene))
        assert answer.status == 502 or not answer.whole
    except OSError:
        pass
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] == ["bad-response"]


def test_a_part_of_an_answer(start_intercepted: StartIntercepted) -> None:
    """206: as it is, it is looked through; compressed it cannot be, and is refused."""
    part = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-99/1000\r\n%bContent-Length: %d\r\n\r\n%b"
    scene = start_intercepted(secrets=SECRETS, handler=sending(part % (b"", len(REAL), REAL)))
    answer = parse_answer(ask_with_key(scene))
    assert (answer.status, answer.body) == (206, scene.placeholder())
    packed = part % (b"Content-Encoding: gzip\r\n", 10, member(REAL)[:10])
    scene = start_intercepted(secrets=SECRETS, handler=sending(packed))
    assert parse_answer(ask_with_key(scene)).status == 502


def test_a_101_is_looked_through(start_intercepted: StartIntercepted) -> None:
    response = (
        b"HTTP/1.1 101 %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Echo: %b\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n" % (REAL, REAL)
    )
    scene = start_intercepted(secrets=SECRETS, handler=sending(response))
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: %b\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % scene.placeholder()
        )
        received = conn.recv(65536)
    assert b"X-Echo: %b\r\n" % scene.placeholder() in received
    assert REAL not in received


def test_a_field_that_is_set_by_us_cannot_be_taken_off(start_intercepted: StartIntercepted) -> None:
    """B6: `Connection: X-Key` names a field of the client's own hop; ours is not of that hop."""
    scene = start_intercepted(
        secrets={"KEY": {"hosts": ["good.test private"], "inject": {"header": "X-Key", "format": "{value}"}}}
    )
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: X-Key\r\nX-Key: mine\r\n\r\n")
        assert read_reply(conn).status in (200, 400)
        if b"GET" in scene.origin.everything:
            assert scene.origin.everything.count(b"X-Key") == 1
            assert b"X-Key: %b\r\n" % REAL in scene.origin.everything


def test_a_renewed_value_is_used_and_both_are_looked_for(start_intercepted: StartIntercepted) -> None:
    """The old one may still come back."""
    renewed = b"the renewed value"
    both = REAL + b" " + renewed
    scene = start_intercepted(
        secrets=SECRETS, handler=sending(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(both), both))
    )
    ask_with_key(scene)
    scene.secrets[0].renew(renewed)
    answer = parse_answer(ask_with_key(scene))
    assert answer.body == scene.placeholder() + b" " + scene.placeholder()
    assert b"X-Key: %b\r\n" % renewed in scene.origin.everything


def test_many_clients_at_once(start_intercepted: StartIntercepted) -> None:
    """Each gets its own answers, over connections that are shared in turn."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := origin.read(conn, raw):
            path = head.split(b" ")[1]
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    scene = start_intercepted(secrets=SECRETS, handler=handle)
    wrong: list[str] = []
    context = scene.trust()

    def work(number: int) -> None:
        with scene.open(context=context) as conn:
            for turn in range(10):
                path = f"/{number}/{turn}"
                conn.sendall(f"GET {path} HTTP/1.1\r\nHost: good.test\r\nConnection: keep-alive\r\n\r\n".encode())
                received = b""
                while path.encode() not in received and b"\r\n\r\n0\r\n" not in received:
                    received += conn.recv(65536)
                if received.count(b"HTTP/1.1 200") != 1:
                    wrong.append(path)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert wrong == []
    scene.settle()
    assert len([end for end in scene.ends() if end["method"] == "GET"]) == 160


@pytest.mark.parametrize("how", ["plain", "inside TLS"])
def test_the_rest_of_an_answer_is_nobodys_answer(how: str, start_intercepted: StartIntercepted) -> None:
    """A client that leaves in the middle of its answer: the server's connection is not given to the next one."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        if origin.connections > 1:
            conn.sendall(OK)
            return
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

    scene = start_intercepted(["good.test private methods=GET"], handler=handle, plain_handler=handle)

    def ask() -> socket.socket:
        conn = scene.gate.connect() if how == "plain" else scene.open()
        target = b"http://good.test/" if how == "plain" else b"/"
        conn.sendall(b"GET %b HTTP/1.1\r\nHost: good.test\r\n\r\n" % target)
        return conn

    with ask() as first:
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        reset(first)
    scene.settle()
    with ask() as second:
        assert read_reply(second).body == b"hello"


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc-web+proto"])
def test_a_counted_grpc_answer_keeps_its_one_length(content_type: str, start_intercepted: StartIntercepted) -> None:
    """Its messages have lengths of their own in front, so what is taken out is made up for, byte by byte."""
    message = b"\0" + len(REAL).to_bytes(4) + REAL
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(message)}\r\n\r\n"
    scene = start_intercepted(secrets=SECRETS, handler=sending(head.encode() + message))
    received = ask_with_key(scene)
    assert received.lower().count(b"content-length") == 1
    answer = parse_answer(received)
    assert answer.whole
    assert len(answer.body) == len(message)
    assert REAL not in answer.body
