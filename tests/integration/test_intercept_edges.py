"""What happens at the edges of interception: broken TLS, stops, full disks, and unusual clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any

import pytest

from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted, StartIntercepted, read_rest, read_to_any_end
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls
from tests.support.origins.raw import RawHandler, RawOrigin, receive_body

REAL = VALUE.encode()
GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
SECRETS: dict[str, dict[str, Any]] = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
every_door = pytest.mark.parametrize("door", DOORS)


def sending(*parts: bytes) -> RawHandler:
    """Answer every request with these parts, each in a record of its own."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            for part in parts:
                conn.sendall(part)

    return handle


# TLS that breaks


@every_door
@pytest.mark.parametrize("moment", ["before a request", "in a body", "in an answer"])
def test_garbage_inside_the_clients_tls_ends_it(moment: str, door: str, start_intercepted: StartIntercepted) -> None:
    """A record that cannot be decrypted: the connection is gone, the server is let go, nothing else notices."""
    gone = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        try:
            origin.read(conn, raw)
            if moment == "in an answer":
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
            while origin.read(conn, raw):
                pass
        finally:
            gone.set()

    scene = start_intercepted(handler=handle)
    with scene.open(door=door) as conn:
        if moment == "in a body":
            conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 10\r\n\r\nhalf")
            wait_until(lambda: b"half" in scene.origin.everything, "the body to begin")
        elif moment == "in an answer":
            conn.sendall(GET)
            assert conn.recv(65536)
        with socket.socket(fileno=socket.dup(conn.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
        read_to_any_end(conn)
    assert moment == "before a request" or gone.wait(60)
    scene.settle()


def test_garbage_inside_the_servers_tls_shows(start_intercepted: StartIntercepted) -> None:
    """The client sees half an answer for what it is."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        with socket.socket(fileno=socket.dup(conn.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle)
    with scene.open() as conn:
        conn.sendall(GET)
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            read_rest(conn)


def test_a_refused_upload_leaves_the_connection_usable(start_intercepted: StartIntercepted) -> None:
    """A body that was read whole before the server turned out to be bad: the next request is not taken for it."""
    scene = start_intercepted(secrets=SECRETS, context=tls.expired(), handler=receive_body)
    body = b"k=" + scene.placeholder()
    post = b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with scene.open() as conn:
        conn.sendall(post)
        assert read_reply(conn).status == 502
        scene.origin.context = tls.server_context()
        conn.sendall(post + GET)
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 200]
    assert scene.origin.everything.count(b"k=" + REAL) == 1


def test_a_body_that_is_read_whole_and_cut_off(start_intercepted: StartIntercepted) -> None:
    """The server never hears of it."""
    scene = start_intercepted(secrets=SECRETS)
    with scene.open() as conn:
        conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 100\r\n\r\nhalf")
    assert scene.decided() == [("allow", "intercepted"), ("deny", "malformed")]
    assert scene.origin.connections == 0


def test_a_body_that_follows_slowly_is_read_whole(start_intercepted: StartIntercepted) -> None:
    """Byte by byte, and the next request in the same record as its last byte."""
    scene = start_intercepted(secrets=SECRETS, handler=receive_body)
    body = b"k=%b&end" % scene.placeholder()
    with scene.open() as conn:
        conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n" % len(body))
        for at in range(len(body) - 1):
            conn.sendall(body[at : at + 1])
        conn.sendall(body[-1:] + GET)
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 200]
    assert b"k=%b&end" % REAL in scene.origin.everything


# Stops and failures of our own


@every_door
def test_the_gateway_stops(door: str, start_intercepted: StartIntercepted) -> None:
    """Idle connections and those under way end, and the tunnel's last line is written."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle)
    with scene.open(door=door) as idle, scene.open(door=door) as busy:
        busy.sendall(GET)
        assert busy.recv(65536)
        scene.gate.call(scene.gate.gateway.aclose())
        for conn in (idle, busy):
            read_to_any_end(conn)
    ends = [line for line in scene.gate.lines() if line["event"] == "end"]
    assert sorted(end["method"] for end in ends) == ["CONNECT", "CONNECT", "GET"]
    assert [end["note"] for end in ends if end["method"] == "GET"] == ["gateway-stopped"]


def test_draining_finishes_what_is_under_way(start_intercepted: StartIntercepted) -> None:
    """A response that has begun is completed, with its end of TLS, before the gateway is gone."""
    go = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegun")
        go.wait(10)
        conn.sendall(b"ended")
        origin.read(conn, raw)

    scene = start_intercepted(handler=handle)
    with scene.open() as conn:
        conn.sendall(GET)
        received = conn.recv(65536)
        stopping = threading.Thread(target=lambda: scene.gate.call(scene.gate.gateway.aclose(drain_s=10)))
        stopping.start()
        go.set()
        received += read_rest(conn)
        stopping.join(10)
    assert received.endswith(b"begunended")


def test_f3_what_cannot_be_recorded_does_not_go_out(start_intercepted: StartIntercepted) -> None:
    """F3: neither a tunnel to be looked into nor a request inside one."""
    scene = start_intercepted(secrets=SECRETS)
    with scene.open() as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 200
        reached = scene.origin.received
        scene.gate.call(_fail_journal(scene))
        conn.sendall(b"GET /2 HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
        assert read_reply(conn).status == 503
    with scene.gate.connect() as plain:
        assert connect_dial(plain, b"good.test:443").status == 503
    with scene.gate.connect() as plain:
        assert socks_dial(plain, b"good.test", 443) == 1
    assert scene.origin.received == reached


async def _fail_journal(scene: Intercepted) -> None:
    from exeat.errors import AuditError

    journal = scene.gate.gateway.state.journal

    def fail(_: str) -> asyncio.Future[None]:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(AuditError("no room"))
        return failed

    journal.commit = fail  # type: ignore[method-assign, assignment]


def test_an_address_that_is_not_public_needs_its_option(start_intercepted: StartIntercepted) -> None:
    """A5: that a host has a secret does not make it private; the client is told inside its TLS."""
    scene = start_intercepted([], secrets={"KEY": {"hosts": ["good.test"]}})
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
        reply = read_reply(conn)
        assert reply.status == 403
        assert b"not public" in reply.body
    assert scene.dials.made == []
    assert scene.decided() == [("allow", "intercepted"), ("deny", "private-address")]


@pytest.mark.parametrize("kind", ["request", "response"])
def test_a_head_that_is_too_large(kind: str, start_intercepted: StartIntercepted) -> None:
    """431 to a client, 502 for a server: both inside TLS, in whatever pieces it comes."""
    scene = start_intercepted(handler=sending(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n"))
    with scene.open() as conn:
        if kind == "request":
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX: " + b"a" * 70_000 + b"\r\n\r\n")
            assert read_reply(conn).status == 431
        else:
            conn.sendall(GET)
            assert read_reply(conn).status == 502
    assert bool(scene.origin.received) is (kind == "response")


@pytest.mark.parametrize("alpn", [(), ("foo",), ("http/1.0", "http/1.1")], ids=["none", "unknown", "several"])
def test_clients_that_name_no_protocol_speak_http_1(alpn: tuple[str, ...], start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted()
    context = ssl.create_default_context(cadata=scene.authority.certificate_pem.decode("ascii"))
    if alpn:
        context.set_alpn_protocols(list(alpn))
    with scene.open(context=context) as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 200


@every_door
def test_an_international_name(door: str, start_intercepted: StartIntercepted) -> None:
    """The certificate shown and the one asked for are for the name in its one form."""
    host = "xn--bcher-kva.wild.test"
    scene = start_intercepted(["b\u00fccher.wild.test private methods=GET"])
    with scene.open(host, door=door) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())
        assert read_reply(conn).status == 200
    assert scene.origin.shakes.names == [host]


@pytest.mark.parametrize("door", ["connect", "socks"])
def test_an_ipv6_address(door: str, start_intercepted: StartIntercepted) -> None:
    """Brackets in the authority, none in the certificate; no server name is sent for an address."""
    scene = start_intercepted(["[::1]:443 methods=GET"])
    context = tls.server_context(tls.trusted_authority().issue_cert("::1"))
    origin = tls.TlsOrigin(context=context, host="::1")
    scene.dials.ports[443] = origin.port
    try:
        with scene.open("[::1]", door=door, name="::1") as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert read_reply(conn).status == 200
        assert origin.shakes.names == [None]
        assert origin.everything.startswith(b"GET / HTTP/1.1\r\nHost: [::1]\r\n")
    finally:
        origin.close()


def test_a_name_that_does_not_resolve(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=SECRETS)
    scene.gate.names = {}
    with scene.open() as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 502
        conn.sendall(GET)
        assert read_reply(conn).status == 502
    assert scene.dials.made == []
