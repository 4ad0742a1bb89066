"""HTTP/1.1 inside TLS that is looked into: everything that works without it works with it, and nothing is kept back."""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

from exeat.gateway.limits import Limits
from tests.support import tls_peers
from tests.support.answers import parse_answer, parse_answers, reset
from tests.support.doors import read_reply
from tests.support.intercepted import DOORS, Intercepted, StartIntercepted
from tests.support.origin import OK
from tests.support.raw_origin import RawHandler, RawOrigin
from tests.support.scene import wait_until
from tests.support.tls_peers import say_goodbye

pytest_plugins = ["tests.support.intercepted_fixtures"]

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: good.test\r\n"
MB = 1_000_000
# With a secret for the host both messages go through filters; without, they are passed on as they come.
SECRETS = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
both_ways = pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
every_door = pytest.mark.parametrize("door", DOORS)


def read_rest(conn: ssl.SSLSocket) -> bytes:
    """Everything until TLS ends in order."""
    received = bytearray()
    while data := conn.recv(262_144):
        received += data
    return bytes(received)


def read_until(conn: socket.socket, mark: bytes) -> bytes:
    received = bytearray()
    while mark not in received:
        data = conn.recv(65536)
        assert data, f"the end came before {mark!r}: {bytes(received)!r}"
        received += data
    return bytes(received)


def answering(*parts: bytes, goodbye: bool = True) -> RawHandler:
    """Answer the first request with these parts, each in a record of its own, and close."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        for part in parts:
            conn.sendall(part)
        if goodbye:
            say_goodbye(conn)

    return handle


def ask(scene: Intercepted, request: bytes = GET, method: str = "GET", door: str = "connect") -> Any:
    with scene.open(door=door) as conn:
        conn.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return parse_answer(read_rest(conn), method)


# Requests and responses


@every_door
@both_ways
def test_many_requests_on_one_connection(
    secrets: dict[str, Any] | None, door: str, start_intercepted: StartIntercepted
) -> None:
    """Keep-alive: one after the other, then all in one segment, over one connection to the server."""
    scene = start_intercepted(secrets=secrets)
    with scene.open(door=door) as conn:
        for _ in range(5):
            conn.sendall(GET)
            assert read_reply(conn).body == b"hello"
        conn.sendall(GET * 50)
        for _ in range(50):
            assert read_reply(conn).body == b"hello"
    assert scene.origin.connections == 1
    assert scene.origin.everything.count(b"GET / HTTP/1.1\r\nHost: good.test\r\n") == 55


def test_connections_are_kept_for_others_and_apart_from_plain_ones(start_intercepted: StartIntercepted) -> None:
    """The pool gives a connection over TLS to requests inside TLS, of any client and door, and to no others."""
    scene = start_intercepted(["good.test private methods=GET", "good.test:80 private methods=GET"])
    for door in DOORS:
        with scene.open(door=door) as conn:
            conn.sendall(GET)
            assert read_reply(conn).status == 200
        scene.settle()
    with scene.gate.connect() as plain:
        plain.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(plain).status == 200
    assert (scene.origin.connections, scene.plain.connections) == (1, 1)


@both_ways
def test_chunks_and_trailers_both_ways(secrets: dict[str, Any] | None, start_intercepted: StartIntercepted) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"X-Up: 1\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Down\r\n\r\n3\r\nabc\r\n")
        conn.sendall(b"3\r\ndef\r\n0\r\nX-Down: 2\r\n\r\n")
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        conn.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nup-a\r\n")
        conn.sendall(b"4\r\nup-b\r\n0\r\nX-Up: 1\r\n\r\n")
        answer = read_until(conn, b"X-Down: 2\r\n\r\n")
    whole = parse_answers(answer, "POST", ended=False)[0]
    assert (whole.status, whole.body, whole.whole) == (200, b"abcdef", True)
    assert b"up-a" in scene.origin.everything
    assert b"0\r\nX-Up: 1\r\n\r\n" in scene.origin.everything


@both_ways
def test_expect_100_continue(secrets: dict[str, Any] | None, start_intercepted: StartIntercepted) -> None:
    """The client gets its 100, once, and sends; the body arrives; the connection goes on."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        # As many servers do: whoever expects a 100 gets one, even if the body is there already.
        at = 0
        while origin.read(conn, raw):
            if (end := raw.find(b"\r\n\r\n", at)) < 0:
                continue
            head = raw[at:end].lower()
            if b"expect: 100-continue" in head:
                conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            at = end + 4 + (5 if b"content-length: 5" in head else 0)
            while len(raw) < at:
                origin.read(conn, raw)
            conn.sendall(OK)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        conn.sendall(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert read_until(conn, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(b"body!")
        reply = read_reply(conn)
        assert (reply.status, reply.body) == (200, b"hello"), reply.head
        conn.sendall(GET)
        assert read_reply(conn).status == 200
    assert b"body!" in scene.origin.everything


def test_expectation_that_the_server_does_not_meet(start_intercepted: StartIntercepted) -> None:
    """A final answer instead of 100 is the answer, and nobody waits for the body."""
    scene = start_intercepted(handler=answering(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n"))
    with scene.open() as conn:
        conn.sendall(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert parse_answer(read_rest(conn), "POST").status == 417


NO_BODY = {
    "HEAD": ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nContent-Encoding: gzip\r\n\r\n", 200),
    "HEAD chunked": ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
    "204": ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
    "304": ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\nETag: \"x\"\r\n\r\n", 304),
    "empty": ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
}  # fmt: skip


@both_ways
@pytest.mark.parametrize(("method", "response", "status"), NO_BODY.values(), ids=NO_BODY.keys())
def test_responses_without_a_body(
    method: str, response: bytes, status: int, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """They end with their head, and the next request is served on the same connection."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            conn.sendall(response)

    scene = start_intercepted(handler=handle, secrets=secrets)
    given = scene.placeholder() if secrets else b"x"  # something is given out, so responses are looked through
    request = b"%b / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % (method.encode(), given)
    with scene.open() as conn:
        for _ in range(2):
            conn.sendall(request)
            head = read_until(conn, b"\r\n\r\n")
            assert head.endswith(b"\r\n\r\n")
            answer = parse_answers(head, method, ended=False)[0]
            assert (answer.status, answer.body) == (status, b"")
    assert scene.origin.connections == 1


@both_ways
def test_a_client_of_http_1_0(secrets: dict[str, Any] | None, start_intercepted: StartIntercepted) -> None:
    """It gets no chunks, and the end of TLS is the end of what has no length."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    scene = start_intercepted(handler=answering(chunked), secrets=secrets)
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.0\r\nX-Key: %b\r\n\r\n" % (scene.placeholder() if secrets else b"x"))
        head, _, body = read_rest(conn).partition(b"\r\n\r\n")
    assert body == b"abcdef"
    assert b"chunked" not in head


@both_ways
def test_a_server_of_http_1_0(secrets: dict[str, Any] | None, start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(handler=answering(b"HTTP/1.0 200 OK\r\n\r\nold", b" server"), secrets=secrets)
    answer = ask(scene)
    assert (answer.status, answer.body, answer.whole) == (200, b"old server", True)


# Ends


@every_door
@both_ways
@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
def test_the_end_of_a_response_without_a_length(
    goodbye: bool, secrets: dict[str, Any] | None, door: str, start_intercepted: StartIntercepted
) -> None:
    """TLS has an end of its own. A connection that ends without may have been cut on the way, and the client sees it."""
    handler = answering(b"HTTP/1.1 200 OK\r\n\r\n", b"some ", b"content", goodbye=goodbye)
    scene = start_intercepted(handler=handler, secrets=secrets)
    with scene.open(door=door) as conn:
        key = scene.placeholder() if secrets else b"x"
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % key)
        if goodbye:
            answer = parse_answer(read_rest(conn))
            assert (answer.body, answer.whole) == (b"some content", True)
        else:
            with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
                read_rest(conn)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert end["note"] == ("" if goodbye else "upstream-lost")


CUT = {
    "in a counted body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun",
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nbegun",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
}


@both_ways
@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
@pytest.mark.parametrize("response", CUT.values(), ids=CUT.keys())
def test_a_server_that_leaves_in_the_middle(
    response: bytes, goodbye: bool, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """The cut shows, however orderly TLS was ended."""
    scene = start_intercepted(handler=answering(response, goodbye=goodbye), secrets=secrets)
    with scene.open() as conn:
        conn.sendall(GET)
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            read_rest(conn)
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] in (
        ["upstream-closed-early"],
        ["upstream-lost"],
    )


@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\nX: y"], ids=["nothing", "half a head"])
def test_a_server_that_leaves_before_its_answer(
    response: bytes, goodbye: bool, start_intercepted: StartIntercepted
) -> None:
    """502, in the client's TLS; and a request that was not to be sent twice was not."""
    parts = (response,) if response else ()
    scene = start_intercepted(handler=answering(*parts, goodbye=goodbye))
    answer = ask(scene, POST + b"Content-Length: 0\r\n\r\n", "POST")
    assert (answer.status, answer.whole) == (502, True)
    assert scene.origin.connections == 1


@pytest.mark.parametrize("how", ["goodbye", "end of file", "reset"])
def test_a_client_that_leaves_during_its_answer(how: str, start_intercepted: StartIntercepted) -> None:
    """The server is let go, and the record says who left."""
    gone = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nbegun")
        try:
            while True:
                conn.sendall(bytes(10_000))
        except OSError:
            gone.set()

    scene = start_intercepted(handler=handle)
    with scene.open() as conn:
        conn.sendall(GET)
        read_until(conn, b"begun")
        if how == "goodbye":
            say_goodbye(conn)
        elif how == "reset":
            reset(conn)
    assert gone.wait(10)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert end["note"] == "client-left"


@both_ways
@pytest.mark.parametrize("how", ["goodbye", "end of file", "reset"])
def test_a_client_that_leaves_during_its_upload(
    how: str, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """The server never gets the end of the body, so it cannot take a part for the whole."""
    cut = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        try:
            while origin.read(conn, raw):
                pass
        finally:
            cut.set()

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        conn.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
        wait_until(lambda: b"begun" in scene.origin.everything, "the body to begin")
        if how == "goodbye":
            say_goodbye(conn)
        elif how == "reset":
            reset(conn)
    assert cut.wait(10)
    assert b"0\r\n\r\n" not in scene.origin.everything
    assert [end["note"] for end in scene.ends() if end["method"] == "POST"] == ["client-left"]


@pytest.mark.parametrize("at_once", [True, False], ids=["in one flight", "later"])
def test_a_client_that_only_finishes_sending_gets_its_answer(
    at_once: bool, start_intercepted: StartIntercepted
) -> None:
    """Half-close, TLS's and then TCP's, right behind the request: the answer comes all the same."""
    scene = start_intercepted()
    conn = DOORS["connect"](scene, b"good.test", 443)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = scene.trust().wrap_bio(incoming, outgoing, server_hostname="good.test")
    with conn:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                conn.sendall(outgoing.read())
                incoming.write(conn.recv(65536))
        if not at_once:
            conn.sendall(outgoing.read())
        client.write(GET)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        conn.sendall(outgoing.read())
        conn.shutdown(socket.SHUT_WR)
        received = bytearray()
        while data := conn.recv(65536):
            received += data
    incoming.write(bytes(received))
    assert client.read(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_refusal_is_read_by_a_client_that_is_still_sending(start_intercepted: StartIntercepted) -> None:
    """Closing on unread bytes would reset the connection, and the client would never learn why."""
    scene = start_intercepted(["good.test private methods=GET"])
    with scene.open() as conn:
        conn.sendall(POST + b"Content-Length: 500000\r\n\r\n")
        assert read_reply(conn).status == 403
        conn.sendall(bytes(500_000))
        assert read_rest(conn) == b""


# Streams


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
            assert asked.acquire(timeout=10)
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
    """Both ways, byte by byte and by the megabyte; compressed messages are not asked for where a secret is."""

    def talk(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while data := origin.read(conn, raw):
            conn.sendall(data)
        say_goodbye(conn)

    scene = start_intercepted(handler=websocket(talk), secrets=secrets)
    with scene.open(door=door) as conn:
        conn.sendall(UPGRADE % (scene.placeholder() if secrets else b"x"))
        head = read_until(conn, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        for frame in (b"a", b"frame", bytes(200_000), b"last"):
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


# Connections that are kept


@both_ways
@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
def test_a_kept_connection_that_was_closed_is_replaced(
    goodbye: bool, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """A server that closes after each answer: the next request gets a connection of its own, twice tried if need be."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(OK)
        if goodbye:
            say_goodbye(conn)

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        for _ in range(10):
            conn.sendall(GET)
            assert read_reply(conn).body == b"hello"
            conn.sendall(POST + b"Content-Length: 0\r\n\r\n")
            assert read_reply(conn).body == b"hello"
    assert scene.origin.connections == 20


@pytest.mark.parametrize(("method", "status", "connections"), [("GET", 200, 2), ("POST", 502, 1)])
def test_a_kept_connection_that_breaks_under_a_request(
    method: str, status: int, connections: int, start_intercepted: StartIntercepted
) -> None:
    """The request is sent again if it may be, with its secret, over a connection that is verified anew."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(OK)
        if origin.connections == 1:
            origin.read(conn, raw)  # and hang up on it
        else:
            origin.read(conn, raw)

    scene = start_intercepted(handler=handle, secrets=SECRETS)
    with scene.open() as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 200
        conn.sendall(
            f"{method} /2 HTTP/1.1\r\nHost: good.test\r\nX-Key: {scene.placeholder().decode()}\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )
        assert read_reply(conn).status == status
    assert scene.origin.connections == connections
    assert scene.origin.everything.count(b"/2 HTTP/1.1") == connections
    assert scene.origin.everything.count(b"X-Key: sk-real") == connections


def test_a_kept_connection_ends_after_its_time(
    start_intercepted: StartIntercepted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees TLS end in order."""
    monkeypatch.setattr("exeat.gateway.gateway._SWEEP_S", 0.05)
    ended = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(OK)
        if origin.read(conn, raw) == b"":  # an unclean end would raise
            ended.set()

    scene = start_intercepted(handler=handle, limits=Limits(upstream_idle_s=0.05))
    with scene.open() as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 200
        assert ended.wait(10)


TIMES: dict[str, tuple[dict[str, float], bytes, list[int]]] = {
    "no hello": ({"head_s": 0.05, "first_byte_s": 0.05}, b"", []),
    "half a hello": ({"head_s": 0.05}, b"\x16\x03\x01\x02\x00\x01\x00", []),
}


@every_door
@pytest.mark.parametrize(("limits", "data", "statuses"), TIMES.values(), ids=TIMES.keys())
def test_a_client_that_does_not_begin_is_let_go(
    limits: dict[str, float],
    data: bytes,
    statuses: list[int],
    door: str,
    start_intercepted: StartIntercepted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("exeat.gateway.gateway._SWEEP_S", 0.05)
    scene = start_intercepted(limits=Limits(**limits))  # type: ignore[arg-type]
    with DOORS[door](scene, b"good.test", 443) as conn:
        conn.sendall(data)
        try:
            assert conn.recv(100) in (b"", b"\x15\x03\x03\x00\x02\x02\x31")
        except ConnectionResetError:
            pass
    scene.settle()
    assert scene.dials.made == []


def test_a_client_that_stops_in_the_handshake_is_let_go(
    start_intercepted: StartIntercepted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exeat.gateway.gateway._SWEEP_S", 0.05)
    scene = start_intercepted(limits=Limits(head_s=0.1))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = scene.trust().wrap_bio(incoming, outgoing, server_hostname="good.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with DOORS["connect"](scene, b"good.test", 443) as conn:
        conn.sendall(outgoing.read())
        with pytest.raises(ConnectionResetError):
            while conn.recv(65536):
                pass
            raise ConnectionResetError  # an orderly end will do as well
    (end,) = scene.ends()
    assert "left before TLS" in end["note"]


@pytest.mark.parametrize(
    ("limits", "data", "answer"),
    [
        ({"keep_alive_s": 0.05}, b"", []),
        ({"head_s": 0.05}, b"GET / HTTP/1.1\r\nHost: go", [408]),
        ({"response_s": 0.05}, GET, [504]),
        ({"idle_s": 0.05, "response_s": 0.05}, POST + b"Content-Length: 5\r\n\r\nab", [504]),
    ],
    ids=["between requests", "in a head", "before the answer", "in a body"],
)
def test_time_limits_hold_inside(
    limits: dict[str, float],
    data: bytes,
    answer: list[int],
    start_intercepted: StartIntercepted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each ends the connection, with the answer it has without TLS."""
    monkeypatch.setattr("exeat.gateway.gateway._SWEEP_S", 0.05)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            pass

    scene = start_intercepted(handler=handle, limits=Limits(**limits))  # type: ignore[arg-type]
    with scene.open() as conn:
        conn.sendall(data)
        received = b""
        try:
            received = read_rest(conn)
        except (ConnectionResetError, ssl.SSLEOFError):
            assert answer == []
    assert [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]] == answer


def test_an_upload_budget_holds_inside(start_intercepted: StartIntercepted) -> None:
    """B6: what is sent inside TLS counts, heads and all."""
    scene = start_intercepted(["good.test private methods=POST max_upload=1KB"], handler=answering(OK))
    answer = ask(scene, POST + b"Content-Length: 5000\r\n\r\n" + bytes(5000), "POST")
    assert answer.status == 413
    assert ask(scene, POST + b"Content-Length: 0\r\n\r\n", "POST").status == 413  # spent is spent


def test_the_roots_of_the_client_do_not_matter_to_the_server(start_intercepted: StartIntercepted) -> None:
    """What the server sees is our TLS: of version 1.2 at least, with the name that was judged."""
    scene = start_intercepted(context=tls_peers.server_context(alpn=["h2", "http/1.1"]))
    context = scene.trust(alpn=["http/1.1"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with scene.open(context=context) as conn:
        assert (conn.version(), conn.selected_alpn_protocol()) == ("TLSv1.2", "http/1.1")
        conn.sendall(GET)
        assert read_reply(conn).status == 200
    assert scene.origin.shakes.names == ["good.test"]
    assert scene.origin.shakes.protocols == ["http/1.1"]
