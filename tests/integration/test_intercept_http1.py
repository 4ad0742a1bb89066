"""HTTP/1.1 inside TLS that is looked into: everything that works without it works with it."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

import pytest

from exeat.gateway.limits import Limits
from tests.support.clients.answers import parse_answer, parse_answers
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import DOORS, Intercepted, StartIntercepted, answering, read_rest, read_until
from tests.support.origins import tls
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawOrigin
from tests.support.origins.tls import say_goodbye

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: good.test\r\n"
MB = 1_000_000
# With a secret for the host both messages go through filters; without, they are passed on as they come.
SECRETS = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
both_ways = pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
every_door = pytest.mark.parametrize("door", DOORS)


def ask(scene: Intercepted, request: bytes = GET, method: str = "GET", door: str = "connect") -> Any:
    with scene.open(door=door) as conn:
        conn.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return parse_answer(read_rest(conn), method)


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
    """The pool hands a connection over TLS to requests inside TLS, of any client and door, and to no others."""
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
    """A final answer instead of 100 is the answer, and no one waits for the body."""
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
            for request in (GET, POST + b"Content-Length: 0\r\n\r\n"):
                conn.sendall(request)
                assert read_reply(conn).body == b"hello"
                assert scene.origin.closed.acquire(timeout=60)  # before, no one can know, and a POST is not sent twice
    assert scene.origin.connections == 20


@pytest.mark.parametrize(("method", "status", "connections"), [("GET", 200, 2), ("POST", 502, 1)])
def test_a_kept_connection_that_breaks_under_a_request(
    method: str, status: int, connections: int, start_intercepted: StartIntercepted
) -> None:
    """The request is sent again if it may be, with its secret, over a connection that is verified again."""

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
    monkeypatch.setattr("exeat.gateway.sweeper._SWEEP_S", 0.05)
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
        assert ended.wait(60)


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
    monkeypatch.setattr("exeat.gateway.sweeper._SWEEP_S", 0.05)
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
    monkeypatch.setattr("exeat.gateway.sweeper._SWEEP_S", 0.05)
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
    monkeypatch.setattr("exeat.gateway.sweeper._SWEEP_S", 0.05)

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
    scene = start_intercepted(context=tls.server_context(alpn=["h2", "http/1.1"]))
    context = scene.trust(alpn=["http/1.1"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with scene.open(context=context) as conn:
        assert (conn.version(), conn.selected_alpn_protocol()) == ("TLSv1.2", "http/1.1")
        conn.sendall(GET)
        assert read_reply(conn).status == 200
    assert scene.origin.shakes.names == ["good.test"]
    assert scene.origin.shakes.protocols == ["http/1.1"]
