"""Redirected HTTP and TLS, in a real namespace: what programs do that know nothing of a proxy."""

from __future__ import annotations

import socket

import pytest

from exeat.gateway.limits import Limits
from tests.support.clients.hello import client_hello
from tests.support.clients.talk import read_reply
from tests.support.fixtures.gateways import StartInside, StartRawOrigin
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import read_all
from tests.support.gateways.inside import was_reset
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import PING, TLS_SEEN

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
