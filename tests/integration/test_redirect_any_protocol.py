"""Redirected connections of any protocol, to names and to addresses, in a real namespace."""

from __future__ import annotations

import hashlib
import random
import socket
import threading

import pytest

from tests.support.clients.hello import client_hello
from tests.support.clients.talk import read_exactly, read_reply
from tests.support.fixtures.gateways import StartInside, StartRawOrigin
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import PING, PONG, TLS_SEEN, RawOrigin, speak_first

BANNER = b"SSH-2.0-server\r\n"
EVIL = "93.184.215.14"

pytestmark = pytest.mark.usefixtures("quick_sweep")
both_families = pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])


GET = b"GET /%b HTTP/1.1\r\nHost: good.test\r\n\r\n"


# Other protocols


@both_families
def test_a_server_that_speaks_first(ipv6: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """SSH, SMTP, MySQL: the client says nothing until it has read the server's greeting."""
    origin = start_raw_origin(speak_first(BANNER))
    inside = start_inside([f"good.test:{origin.port} private"])
    with inside.reach("good.test", origin.port, ipv6=ipv6) as conn:
        assert read_until(conn, b"\n") == BANNER
        conn.sendall(b"SSH-2.0-client\r\n")
        assert read_until(conn, b"\n") == b"SSH-2.0-client\r\n"
        # What follows a greeting is judged by no one, even if it looks like a request.
        conn.sendall(GET % b"")
        assert read_exactly(conn, len(GET % b"")) == GET % b""
    assert [(r["protocol"], r["method"], r["verdict"]) for r in inside.decisions()] == [
        ("redirect", "CONNECT", "allow")
    ]


def test_a_client_that_speaks_first_on_another_port(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """PostgreSQL, Redis: opaque to us; TLS is not, on any port."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} private"])
    with inside.reach("good.test", origin.port) as conn:
        conn.sendall(PING)
        assert read_until(conn, b"\n") == PONG
    with inside.reach("good.test", origin.port) as conn:
        conn.sendall(client_hello(b"good.test"))
        assert read_all(conn) == TLS_SEEN
    inside.settle()
    before = origin.received
    with inside.reach("good.test", origin.port) as conn:
        conn.sendall(client_hello(b"evil.test"))
        assert read_all(conn) == ALERT
    assert [r["reason"] for r in inside.decisions()] == ["allowed", "allowed", "allowed", "sni-mismatch"]
    assert origin.received == before


def test_half_close_both_ways(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """A client that has finished sending still gets its answer, and one whose server has finished may still send."""

    def answer_at_the_end(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            pass
        conn.sendall(b"got %d" % len(raw))

    def end_and_listen(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        conn.shutdown(socket.SHUT_WR)
        while origin.read(conn, raw):
            pass

    first = start_raw_origin(answer_at_the_end)
    second = start_raw_origin(end_and_listen)
    inside = start_inside([f"good.test:{port} private" for port in (first.port, second.port)])
    with inside.reach("good.test", first.port) as conn:
        conn.sendall(b"some bytes\n")
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == b"got 11"
    with inside.reach("good.test", second.port) as conn:
        assert conn.recv(10) == b""
        conn.sendall(b"more bytes\n")
    wait_until(lambda: second.everything == b"more bytes\n", "what was sent after the server's end")


@both_families
def test_a_large_transfer_both_ways(ipv6: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """Megabytes up and down at once, long enough to be moved by the kernel, every byte in its place."""

    def echo(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while data := conn.recv(1 << 20):
            conn.sendall(data)

    origin = start_raw_origin(echo)
    inside = start_inside([f"good.test:{origin.port} private"])
    data = random.Random(7).randbytes(16_000_003)
    with inside.reach("good.test", origin.port, ipv6=ipv6) as conn:

        def send() -> None:
            conn.sendall(data)
            conn.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = hashlib.sha256()
        while block := conn.recv(1 << 20):
            received.update(block)
        sender.join()
    assert received.digest() == hashlib.sha256(data).digest()
    (end,) = inside.ends()
    assert (end["sent"], end["received"]) == (len(data), len(data))


# Addresses


def test_an_address_needs_a_rule_of_its_own(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """Of either family; on record it is the host. It is dialled as it is, and no name is asked for."""
    origin = start_raw_origin()
    inside = start_inside([EVIL, f"[2001:db8::1]:{origin.port} private"], web=origin)
    with inside.reach(EVIL, 80) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % EVIL.encode())
        assert read_reply(conn).status == 200
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).status == 421
    with inside.reach(EVIL, 443) as conn:
        conn.sendall(client_hello(None))
        assert read_all(conn) == TLS_SEEN
    with inside.reach("2001:db8::1", origin.port) as conn:
        conn.sendall(PING)
        assert read_until(conn, b"\n") == PONG
    assert inside.detour.made == [(EVIL, 80), (EVIL, 443), ("2001:db8::1", origin.port)]
    assert {r["host"] for r in inside.decisions()} == {EVIL, "2001:db8::1"}
    assert inside.gate.asked == []
    assert inside.holds.begun == 0


@pytest.mark.threat("T-B1")
@pytest.mark.parametrize("host", [EVIL, "2001:db8::1", "169.254.169.254", "10.0.0.1", "::ffff:1.2.3.4"])
@pytest.mark.parametrize(
    ("port", "data"),
    [
        (80, b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"),
        (443, client_hello(b"good.test")),
        (8443, client_hello(b"good.test")),
        (8080, b"GET / HTTP/1.1\r\nHost: good.test:8080\r\n\r\n"),
        (22, b"SSH-2.0-client\r\n"),
    ],
)
def test_an_allowed_name_inside_does_not_help_an_address(
    port: int, data: bytes, host: str, start_inside: StartInside
) -> None:
    """The address that was connected to is what counts: one denial, for it, and nothing dialled."""
    inside = start_inside(["good.test:* private", "*:* private force"])
    with inside.reach(host, port) as conn:
        conn.sendall(data)
        read_all(conn)
    record = inside.denial()
    assert (record["host"], record["port"]) == (host.removeprefix("::ffff:"), port)
    assert record["reason"] == "address-not-listed"


@pytest.mark.parametrize("host", ["198.18.0.99", "198.19.255.254", "fd65:7865:6174::63"])
@pytest.mark.parametrize("port", [80, 443, 22])
def test_an_address_of_ours_that_stands_for_nothing(host: str, port: int, start_inside: StartInside) -> None:
    """Guessed, or kept too long: denied even where a rule lists the range, since such an address is never dialled."""
    inside = start_inside(["198.18.0.0/15:* private", "[fd65:7865:6174::]/96:* private", "*:* private force"])
    with inside.reach(host, port) as conn:
        if port != 22:
            conn.sendall(GET % b"" if port == 80 else client_hello(b"good.test"))
        answer = read_all(conn)
    if port == 80:
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"belongs to no name" in answer
    else:
        assert answer == (ALERT if port == 443 else b"")
    record = inside.denial()
    assert (record["host"], record["port"], record["reason"]) == (host, port, "unknown-address")
    assert (record["protocol"], record["method"]) == (
        ("redirect/http", "GET") if port == 80 else ("redirect", "CONNECT")
    )


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("server", ["192.0.2.53", "2001:db8::53", "127.0.0.1"])
def test_a_name_is_asked_for_and_connected_to(
    server: str, tcp: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """As programs do it: DNS from whatever server they believe in, then a connection to what it said."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} private"])
    namespace = inside.gate.inside
    for ipv6 in (False, True):
        code, (address,) = namespace.resolve(b"Good.Test", ipv6=ipv6, tcp=tcp, server=server)
        assert code == 0
        with namespace.connect(address, origin.port) as conn:
            conn.sendall(PING)
            assert read_until(conn, b"\n") == PONG
    assert [r["host"] for r in inside.decisions()] == ["good.test", "good.test"]
    assert inside.holds.begun == 2
    code, addresses = namespace.resolve(b"evil.test", tcp=tcp, server=server)
    assert (code != 0, addresses) == (True, [])
    assert "evil.test" not in inside.gate.asked


def test_an_address_is_held_as_long_as_its_connection_lives(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """A name must not lose its address to another one under a live connection."""
    origin = start_raw_origin(speak_first(BANNER))
    inside = start_inside([f"good.test:{origin.port} private"])
    with inside.reach("good.test", origin.port) as one, inside.reach("good.test", origin.port, ipv6=True) as two:
        assert read_until(one, b"\n") == read_until(two, b"\n") == BANNER
        assert inside.holds.live == 2
    inside.settle()
    assert (inside.holds.begun, inside.holds.live) == (2, 0)
