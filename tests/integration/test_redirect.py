"""Redirected connections, in a real namespace: what programs do that know nothing of a proxy."""

from __future__ import annotations

import hashlib
import random
import socket
import threading

import pytest

from exeat.gateway.limits import Limits
from tests.support.clients.hello import client_hello
from tests.support.clients.talk import read_exactly, read_reply
from tests.support.fixtures.gateways import StartInside, StartRawOrigin
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.inside import was_reset
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import PING, PONG, TLS_SEEN, RawOrigin, speak_first

BANNER = b"SSH-2.0-server\r\n"
EVIL = "93.184.215.14"

pytestmark = pytest.mark.usefixtures("quick_sweep")
both_families = pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])


GET = b"GET /%b HTTP/1.1\r\nHost: good.test\r\n\r\n"


# HTTP


@both_families
def test_http_requests_on_one_connection(
    ipv6: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """Each is decided and recorded, the server's connection is kept, and the name on record is the client's."""
    origin = start_raw_origin()
    inside = start_inside(["good.test private"], web=origin)
    with inside.reach("good.test", 80, ipv6=ipv6) as conn:
        for path in (b"one", b"two", b"three"):
            conn.sendall(GET % path)
            assert read_reply(conn).body == b"hello"
    records = inside.decisions()
    assert [(r["protocol"], r["method"], r["host"], r["port"], r["verdict"]) for r in records] == [
        ("redirect/http", "GET", "good.test", 80, "allow")
    ] * 3
    assert [r["req"] for r in records] == [1, 2, 3]
    assert [(end["status"], end["host"]) for end in inside.ends()] == [(200, "good.test")] * 3
    assert origin.connections == 1
    assert inside.detour.made == [("127.0.0.1", 80)]


def test_pipelined_requests_with_a_refusal_between(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """Method and path rules hold for plain HTTP, though no tunnel to such a place could be judged."""
    origin = start_raw_origin()
    inside = start_inside(["good.test methods=GET paths=/pub/** private"], web=origin)
    with inside.reach("good.test", 80) as conn:
        conn.sendall(GET % b"pub/1" + GET % b"secret" + GET % b"pub/../secret" + GET % b"pub/2")
        assert [read_reply(conn).status for _ in range(4)] == [200, 403, 403, 200]
    assert origin.everything.count(b"GET /pub/1 ") == origin.everything.count(b"GET /pub/2 ") == 1
    assert b"secret" not in origin.everything
    assert [r["verdict"] for r in inside.decisions()] == ["allow", "deny", "deny", "allow"]


@both_families
def test_http_on_a_port_that_a_rule_names(
    ipv6: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """To a client that has not spoken yet a tunnel is opened, then served as HTTP over the tunnel's connection."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} private"])
    with inside.reach("good.test", origin.port, ipv6=ipv6) as conn:
        wait_until(lambda: origin.connections == 1, "the tunnel")
        for host, status in ((b"good.test:%d" % origin.port, 200), (b"evil.test", 421)):
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
            assert read_reply(conn).status == status
    assert [(r["protocol"], r["verdict"]) for r in inside.decisions()] == [
        ("redirect", "allow"),
        ("redirect/http", "allow"),
        ("redirect/http", "deny"),
    ]
    assert origin.connections == 1


def test_http_at_once_on_a_port_that_a_rule_names(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """Whether a tunnel was opened before the request came or not, the request has its own record and answer."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} private"])
    for _ in range(10):
        with inside.reach("good.test", origin.port) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % origin.port)
            assert read_reply(conn).body == b"hello"
    requests = [r for r in inside.decisions() if r["protocol"] == "redirect/http"]
    assert [(r["method"], r["verdict"]) for r in requests] == [("GET", "allow")] * 10


def test_method_rules_on_a_port_that_a_rule_names(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """HTTP is served, the client given time to speak; another protocol cannot be judged, so it is denied undialled."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} methods=GET private"])
    with inside.reach("good.test", origin.port) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % origin.port)
        assert read_reply(conn).status == 200
    with inside.reach("good.test", origin.port) as conn:
        conn.sendall(PING)
        assert was_reset(conn)
    with inside.reach("good.test", origin.port):
        pass  # asks for nothing, so there is nothing to deny
    assert [(r["protocol"], r["reason"]) for r in inside.decisions()] == [
        ("redirect/http", "allowed"),
        ("redirect", "needs-interception"),
    ]
    assert origin.connections == 1


def test_another_host_header_is_misdirected(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """B1: an allowed name in the Host header leads nowhere but to where the connection was going."""
    inside = start_inside(["good.test private", "*.wild.test private"], web=start_raw_origin())
    with inside.reach("good.test", 80) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a.wild.test\r\n\r\n")
        assert read_reply(conn).status == 421
    assert inside.denial()["host"] == "good.test"


# TLS


@both_families
@pytest.mark.parametrize("port", [443, 80])
def test_tls_for_the_right_name(
    port: int, ipv6: bool, start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """The hello arrives as it was sent, in one piece or byte by byte, and what the server says comes back."""
    origin = start_raw_origin()
    inside = start_inside(["good.test private"], web=origin)
    hello = client_hello(b"GOOD.test")
    for step in (len(hello), 1):
        with inside.reach("good.test", port, ipv6=ipv6) as conn:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(hello), step):
                conn.sendall(hello[at : at + step])
            assert read_all(conn) == TLS_SEEN
    assert list(map(bytes, origin.raw)) == [hello, hello]
    assert [(r["protocol"], r["method"], r["host"], r["port"], r["verdict"]) for r in inside.decisions()] == [
        ("redirect", "CONNECT", "good.test", port, "allow")
    ] * 2
    assert [(end["sent"], end["received"]) for end in inside.ends()] == [(len(hello), len(TLS_SEEN))] * 2


@pytest.mark.threat("T-C1")
@pytest.mark.parametrize("name", [b"evil.test", b"a.wild.test", b"sub.good.test", None, b"127.0.0.1"])
@pytest.mark.parametrize("port", [443, 80])
def test_tls_for_another_name_is_refused_before_anything_is_dialled(
    port: int, name: bytes | None, start_inside: StartInside
) -> None:
    """An alert for the client; no DNS, no connection and one record, which names the rule that was not enough."""
    inside = start_inside(["good.test private", "*.wild.test private"])
    with inside.reach("good.test", port) as conn:
        conn.sendall(client_hello(name))
        assert read_all(conn) == ALERT
    record = inside.denial()
    assert (record["protocol"], record["host"], record["reason"]) == ("redirect", "good.test", "sni-mismatch")
    assert record["rule"] == "good.test private"


def test_the_option_lets_another_server_name_through(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """C1's control: with `allow_sni_mismatch` the same hellos pass, so it was the check that cut them."""
    inside = start_inside(["good.test private allow_sni_mismatch"], web=start_raw_origin())
    for name in (b"evil.test", None):
        with inside.reach("good.test", 443) as conn:
            conn.sendall(client_hello(name))
            assert read_all(conn) == TLS_SEEN


@pytest.mark.threat("T-C2")
@pytest.mark.parametrize(
    ("port", "data", "reason"),
    [
        (443, b"SSH-2.0-client\r\n", "not-tls"),
        (443, b"\x16\x03\x01\x00\x00", "malformed"),
        (443, b"\x16\x02\x01\x00\x05hello", "malformed"),
        (80, b"SSH-2.0-client\r\n", "not-http"),
        (80, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not-http"),
    ],
)
def test_nothing_else_passes_on_the_web_ports(port: int, data: bytes, reason: str, start_inside: StartInside) -> None:
    """Broken or not TLS: the connection breaks, or ends with an alert, and nothing is dialled."""
    inside = start_inside(["good.test private"])
    with inside.reach("good.test", port) as conn:
        conn.sendall(data)
        if data[0] == 0x16:
            assert read_all(conn) == ALERT
        else:
            assert was_reset(conn)
    assert inside.denial()["reason"] == reason


@pytest.mark.threat("T-C2")
def test_a_hello_that_is_cut_off(start_inside: StartInside) -> None:
    """Half a hello and then the end: refused without a byte for the server."""
    inside = start_inside(["good.test private"])
    with inside.reach("good.test", 443) as conn:
        conn.sendall(client_hello(b"good.test")[:-1])
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == ALERT
    assert inside.denial()["reason"] == "cut-off"


def test_plain_http_on_443_is_told_so(start_inside: StartInside) -> None:
    """A client that speaks HTTP is answered in HTTP, allowed place or not."""
    inside = start_inside(["good.test private"])
    with inside.reach("good.test", 443) as conn:
        conn.sendall(GET % b"")
        reply = read_reply(conn)
        assert (reply.status, b"TLS only" in reply.body) == (403, True)
        assert read_all(conn) == b""
    assert inside.denial()["reason"] == "not-tls"


def test_a_client_of_a_web_port_that_never_speaks(start_inside: StartInside) -> None:
    """It asked for nothing, so nothing is on record; it is not waited for without end."""
    inside = start_inside(["good.test private"], limits=Limits(first_byte_s=0.1))
    with inside.reach("good.test", 443) as conn:
        assert read_all(conn) == b""
    with inside.reach("good.test", 80):
        pass
    assert inside.decisions() == []
    assert inside.holds.begun == 2


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
        assert b"stands for no name" in answer
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
