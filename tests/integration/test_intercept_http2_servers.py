"""Servers of HTTP/2 behind a look into TLS: those that leave, and what is translated for them."""

from __future__ import annotations

import hashlib
import ssl
import threading
from typing import Any

import pytest

from tests.integration.intercepted_http2 import MB, REAL, SECRETS, every_door, open_client, start
from tests.support.clients.answers import parse_answers
from tests.support.clients.http2 import Answer, Asked, Http2Server
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import StartIntercepted, read_rest
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls

# Servers that leave


@pytest.mark.parametrize("how", ["closes", "GOAWAY"])
def test_a_server_that_leaves_between_requests(how: str, start_intercepted: StartIntercepted) -> None:
    """The next request gets a connection of its own."""
    server = Http2Server()
    if how == "closes":
        server.leave_after = 1
    else:
        server.say_goaway_after = 1
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        for number in range(1, 6):
            assert client.ask().status == 200
            wait_until(lambda number=number: len(server.asked) == number, "the server to have answered")  # type: ignore[misc]
    assert server.connections >= 4


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
@pytest.mark.parametrize("how", ["hangs up", "refuses"])
def test_a_kept_connection_that_breaks_under_a_request(
    how: str, method: str, status: int, start_intercepted: StartIntercepted
) -> None:
    """As with HTTP/1.1: a request that may be sent twice is, and no other."""
    server = Http2Server()
    server.breaks_at, server.refuses = 2, how == "refuses"
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        assert client.ask().status == 200
        answer = client.ask(method, body=b"once" if method == "POST" else None)
        assert answer.status == status


@pytest.mark.parametrize(("how", "status"), [("hangs up", 502), ("refuses", 200)])
@pytest.mark.parametrize("kind", ["no body", "read whole"])
def test_a_request_that_the_server_has_not_looked_at(
    kind: str, how: str, status: int, start_intercepted: StartIntercepted
) -> None:
    """It says so when it refuses a stream: then anything may be sent again, as long as all of it is there."""
    server = Http2Server()
    server.breaks_at, server.refuses = 2, how == "refuses"
    scene = start(start_intercepted, server, secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        assert client.ask().status == 200
        body = scene.placeholder() if kind == "read whole" else None
        fields = [(b"content-length", b"%d" % len(body))] if body is not None else []
        assert client.ask("POST", fields=fields, body=body).status == status
    posted = [asked for asked in server.asked if asked.fields[b":method"] == b"POST"]
    assert [bytes(asked.body) for asked in posted] == ([REAL if body else b""] if status == 200 else [])


def test_a_server_that_leaves_in_the_middle(start_intercepted: StartIntercepted) -> None:
    """The stream is reset: half an answer never looks whole."""

    class Leaving(Http2Server):
        def _send(self, link: Any, waiting: Any) -> None:
            super()._send(link, waiting)
            if any(len(body) < 5 * MB for body, _ in waiting.values()):
                raise OSError("leaves")

    scene = start(start_intercepted, Leaving(lambda asked: Answer(body=bytes(5 * MB))))
    client = open_client(scene)
    with client.conn:
        answer = client.ask()
        assert answer.reset is not None or answer.status == 502


@pytest.mark.threat("T-C5")
@pytest.mark.parametrize("client", ["http/1.1", "h2"])
def test_holds_for_http_2(client: str, start_intercepted: StartIntercepted) -> None:
    """A server that cannot be verified is a 502 on the stream, with the words for it."""
    server = Http2Server()
    scene = start_intercepted(handler=server, context=tls.expired(), secrets=SECRETS)
    scene.origin.context.set_alpn_protocols(["h2"])
    if client == "h2":
        peer = open_client(scene)
        with peer.conn:
            answer = peer.ask(fields=[(b"x-key", scene.placeholder())])
            assert answer.status == 502
            assert b"has expired" in answer.body
    else:
        with scene.open() as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
            assert read_reply(conn).status == 502
    assert server.connections == 0


def test_a_websocket_to_a_server_of_http_2_only(start_intercepted: StartIntercepted) -> None:
    """It is not possible, and the client is told so."""
    server = Http2Server()
    scene = start(start_intercepted, server, "h2 only")
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert conn.recv(65536)[:12] in (b"HTTP/1.1 502", b"HTTP/1.1 200")
    for asked in server.asked:
        assert b"upgrade" not in asked.fields


def test_a_head_request_and_answers_without_a_body(start_intercepted: StartIntercepted) -> None:
    def app(asked: Asked) -> Answer:
        status = asked.fields[b":path"][1:]
        length = [(b"content-length", b"50")] if status in (b"200", b"304") else []
        return Answer([(b":status", status), *length], b"")

    scene = start(start_intercepted, Http2Server(app), secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        for method, path in (("HEAD", b"/200"), ("GET", b"/204"), ("GET", b"/304")):
            answer = client.ask(method, path, [(b"x-key", scene.placeholder())])
            assert (answer.status, bytes(answer.body), answer.ended) == (int(path[1:]), b"", True)


# A client of HTTP/1.1 and a server of HTTP/2 only


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
def test_bodies_and_trailers_are_translated(
    chunked: bool, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """Five megabytes each way, and trailers where HTTP/1.1 has a place for them."""
    body = hashlib.sha256(b"seed").digest() * (5 * MB // 32)
    server = Http2Server(lambda asked: Answer(body=bytes(asked.body), trailers=[(b"x-down", b"2")]))
    scene = start(start_intercepted, server, "h2 only", secrets=secrets)
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    data = b"%x\r\n%b\r\n0\r\nX-Up: 1\r\n\r\n" % (len(body), body) if chunked else body
    with scene.open() as conn:
        sender = threading.Thread(
            target=conn.sendall,
            args=(b"POST / HTTP/1.1\r\nHost: good.test\r\nTE: trailers\r\n%b\r\n\r\n" % framing + data,),
        )
        sender.start()
        sender.join(20)
        received = bytearray()
        while not received.endswith(b"\r\nx-down: 2\r\n\r\n"):
            received += conn.recv(262_144)
    answer = parse_answers(bytes(received), "POST", ended=False)[0]
    assert (answer.status, answer.whole) == (200, True)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()
    (asked,) = server.asked
    assert bytes(asked.body) == body
    assert asked.trailers == ([(b"x-up", b"1")] if chunked else [])


def test_an_expectation_that_the_server_is_silent_about(start_intercepted: StartIntercepted) -> None:
    """Few servers of HTTP/2 send a 100. A client that goes on without one is served."""
    server = Http2Server(lambda asked: Answer(body=bytes(asked.body)))
    scene = start(start_intercepted, server, "h2 only")
    with scene.open() as conn:
        conn.sendall(
            b"POST / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n"
            b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        )
        conn.settimeout(0.2)
        received = b""
        try:
            received = conn.recv(65536)
        except TimeoutError:
            pass  # then the client sends after a while, as RFC 9110 section 10.1.1 has it
        conn.settimeout(10)
        conn.sendall(b"hello")
        received += read_rest(conn)
    assert b"HTTP/1.1 200" in received
    assert b"hello" in received


# Refusals and stops


def test_a_placeholder_in_a_grpc_message_is_refused(start_intercepted: StartIntercepted) -> None:
    """Its length stands in front of it, so nothing can be put in, and the program is told so."""
    server = Http2Server()
    scene = start(start_intercepted, server, secrets=SECRETS)
    message = b"key: " + scene.placeholder()
    client = open_client(scene)
    with client.conn:
        answer = client.ask(
            "POST",
            b"/pkg.Service/Call",
            [(b"content-type", b"application/grpc")],
            b"\0" + len(message).to_bytes(4) + message,
        )
        assert answer.status == 415
        assert client.ask().status == 200
    assert [bytes(asked.body) for asked in server.asked] == [b""]


@every_door
@pytest.mark.parametrize("drain", [False, True], ids=["at once", "draining"])
def test_the_gateway_stops(drain: bool, door: str, start_intercepted: StartIntercepted) -> None:
    """Idle connections end, streams under way are cut, or finished where there is time; every last line is written."""
    server = Http2Server(lambda asked: Answer(body=bytes(MB)))
    scene = start(start_intercepted, server)
    idle, busy = open_client(scene, door=door), open_client(scene, door=door)
    with idle.conn, busy.conn:
        busy.acknowledges = False
        stream = busy.begin()
        while not busy.streams[stream].body:
            busy.receive()
        stop = threading.Thread(
            target=lambda: scene.gate.call(scene.gate.gateway.aclose(drain_s=10 if drain else 0)), daemon=True
        )
        stop.start()
        if drain:
            taken = len(busy.streams[stream].body)
            busy.acknowledges = True
            busy.h2.acknowledge_received_data(taken, stream)
            busy.flush()
            assert len(busy.wait(stream).body) == MB
        for client in (idle, busy):
            try:
                while True:
                    client.receive()
            except (ConnectionError, ssl.SSLError):
                pass
        stop.join(20)
        assert not stop.is_alive()
    ends = [line for line in scene.gate.lines() if line["event"] == "end"]
    assert sorted(end["method"] for end in ends) == ["CONNECT", "CONNECT", "GET"]
    assert [end["note"] for end in ends if end["method"] == "GET"] == ["" if drain else "gateway-stopped"]
