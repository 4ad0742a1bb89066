"""Redirected connections that come to nothing: what the client sees, and what is on record."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

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
# What a client may begin with, and what it must see when it is refused.
BEGINNINGS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 800000\r\n\r\n" + bytes(800_000),
    "half a head": b"GET / HTTP/1.1\r\nHo",
    "TLS": client_hello(b"evil.test"),
    "other": PING,
    "SOCKS": b"\x05\x01\x00",
    "CONNECT": b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n",
}


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for a test to speak after it has seen what the gateway does."""
    monkeypatch.setattr("exeat.gateway.doors.redirect._GRACE_S", 10.0)


def assert_refused(conn: socket.socket, data: bytes, *, status: int = 403, alert: bool = True) -> None:
    """An answer in the client's own protocol, or else a connection that breaks."""
    conn.sendall(data)
    if b" / HTTP/" in data or data.startswith(b"CONNECT"):
        answer = read_all(conn)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nConnection: close" in head
        assert (body == b"") == data.startswith(b"HEAD")
    elif data[:1] == b"\x16" and alert:
        assert read_all(conn) == ALERT
    else:
        assert was_reset(conn)


def break_off(conn: socket.socket, data: bytes, *, status: int) -> None:
    """What came to nothing for another reason than a denial: no alert then, which would name a wrong one."""
    assert_refused(conn, data, status=status, alert=False)


@pytest.mark.parametrize("port", [80, 443, 8080])
@pytest.mark.parametrize("data", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_denied_place(data: bytes, port: int, start_inside: StartInside) -> None:
    """One record, no DNS, no connection, and a refusal that the client understands."""
    inside = start_inside(["good.test private"])
    with inside.reach("evil.test", port) as conn:
        assert_refused(conn, data)
    record = inside.denial()
    assert (record["host"], record["port"], record["reason"]) == ("evil.test", port, "not-listed")
    method = data.split()[0].decode() if b"HTTP/" in data else ""
    assert (record["protocol"], record["method"]) == (("redirect/http", method) if method else ("redirect", "CONNECT"))


def test_the_page_of_a_denial_says_what_would_help(start_inside: StartInside) -> None:
    """As through a proxy: the place, and the rule to allow it."""
    inside = start_inside([])
    with inside.reach("evil.test", 8080) as conn:
        conn.sendall(BEGINNINGS["HTTP"])
        assert b"evil.test:8080 is not allowed; to allow it: --allow evil.test:8080" in read_reply(conn).body


def test_a_denied_upload_does_not_break(start_inside: StartInside) -> None:
    """The body that follows is taken and dropped: a reset would take the answer with it before it is read."""
    inside = start_inside([])
    with inside.reach("evil.test", 80) as conn:
        conn.sendall(b"POST / HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 500000\r\n\r\n")
        assert read_reply(conn).status == 403
        for _ in range(10):
            conn.sendall(bytes(50_000))
        conn.shutdown(socket.SHUT_WR)
        assert conn.recv(1) == b""
    assert inside.denial()["method"] == "POST"


@pytest.mark.parametrize("port", [22, 3306])
def test_a_denied_client_that_waits_for_its_server(port: int, start_inside: StartInside) -> None:
    """It is not left waiting: the connection breaks by itself, though the client never sends a byte."""
    inside = start_inside(["good.test private"])
    with inside.reach("evil.test", port) as conn:
        assert was_reset(conn)
    assert inside.denial()["reason"] == "not-listed"


@pytest.mark.parametrize("port", [80, 443, 22])
def test_a_denied_client_that_leaves_without_a_word(port: int, start_inside: StartInside) -> None:
    """A probe of a port is a connection like any other: on record."""
    inside = start_inside([])
    with inside.reach("evil.test", port) as conn:
        conn.shutdown(socket.SHUT_WR)
        assert was_reset(conn)
    assert inside.denial()["host"] == "evil.test"


def test_a_client_that_is_known_to_speak_first_may_take_its_time(
    start_inside: StartInside, start_raw_origin: StartRawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a web port, denied or not, and where only HTTP can pass; the moment is for those who may never speak."""
    monkeypatch.setattr("exeat.gateway.doors.redirect._GRACE_S", 0.0)
    origin = start_raw_origin()
    inside = start_inside(["good.test private", f"good.test:{origin.port} methods=GET private"], web=origin)
    with (
        inside.reach("evil.test", 443) as denied,
        inside.reach("good.test", 443) as tls,
        inside.reach("good.test", origin.port) as http,
    ):
        wait_until(lambda: inside.holds.live == 3, "three connections")
        inside.gate.call(asyncio.sleep(0.05))
        denied.sendall(client_hello(b"evil.test"))
        assert read_all(denied) == ALERT
        tls.sendall(client_hello(b"good.test"))
        assert read_all(tls) == TLS_SEEN
        http.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % origin.port)
        assert read_reply(http).status == 200


@pytest.mark.parametrize("data", [b"", b"G", b"\x16\x03"])
def test_a_denied_client_that_stops_half_way(data: bytes, start_inside: StartInside) -> None:
    """Time runs out for it, and it is on record then."""
    inside = start_inside([], limits=Limits(first_byte_s=0.1, head_s=0.1))
    with inside.reach("evil.test", 443) as conn:
        conn.sendall(data)
        assert read_all(conn) == b""
    assert inside.denial()["host"] == "evil.test"


def test_a_place_with_method_rules_is_no_place_for_tls(start_inside: StartInside) -> None:
    """What is inside could not be judged."""
    inside = start_inside(["good.test methods=GET private"])
    with inside.reach("good.test", 443) as conn:
        assert_refused(conn, client_hello(b"good.test"))
    assert inside.denial()["reason"] == "needs-interception"


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("data", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_name_that_leads_to_a_forbidden_address(data: bytes, start_inside: StartInside) -> None:
    """D2: denied after the name was resolved: one record, with the address, and nothing dialled."""
    inside = start_inside(["evil.test:8080"], names={"evil.test": ["169.254.169.254"]})
    with inside.reach("evil.test", 8080) as conn:
        wait_until(lambda: inside.gate.asked != [], "the question")
        assert_refused(conn, data)
    (record,) = inside.decisions()
    assert (record["reason"], record["address"]) == ("private-address", "169.254.169.254")
    assert inside.detour.made == []


# Servers that cannot be reached
#
# What a client says before its server is sought may be served otherwise: these clients speak once it is.


@pytest.fixture
def dead_port() -> Any:
    with socket.socket() as bound:  # bound and not listening: connections to it are refused
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("data", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_server_that_is_down(data: bytes, dead_port: int, start_inside: StartInside) -> None:
    """502 for whoever speaks HTTP; for others the connection breaks, and does not end as if that were all."""
    inside = start_inside([f"evil.test:{dead_port} private"])
    with inside.reach("evil.test", dead_port) as conn:
        wait_until(lambda: inside.detour.made != [], "the dial")
        break_off(conn, data, status=502)
    assert [r["verdict"] for r in inside.decisions()] == ["allow"]
    (end,) = inside.ends()
    assert (end["status"], end["note"]) == (502, "connection_refused")


def test_http_at_once_to_a_server_that_is_down(dead_port: int, start_inside: StartInside) -> None:
    """502 whether the server was sought before the request came or not, and one decision for it."""
    inside = start_inside([f"evil.test:{dead_port} private"])
    for _ in range(10):
        with inside.reach("evil.test", dead_port) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: evil.test:%d\r\n\r\n" % dead_port)
            assert read_reply(conn).status == 502
    assert [r["verdict"] for r in inside.decisions()] == ["allow"] * 10
    assert [end["note"] for end in inside.ends()] == ["connection_refused"] * 10


def test_a_server_that_is_down_and_should_have_spoken_first(dead_port: int, start_inside: StartInside) -> None:
    """A client that waits for it sees the connection break."""
    inside = start_inside([f"good.test:{dead_port} private"])
    with inside.reach("good.test", dead_port) as conn:
        assert was_reset(conn)
    assert [end["note"] for end in inside.ends()] == ["connection_refused"]


def test_a_web_server_that_is_down(dead_port: int, start_inside: StartInside) -> None:
    """The HTTP door answers, and goes on; TLS breaks."""
    inside = start_inside(["evil.test private"])
    inside.detour.ports = {80: dead_port, 443: dead_port}
    with inside.reach("evil.test", 80) as conn:
        for _ in range(2):
            conn.sendall(BEGINNINGS["HTTP"])
            assert read_reply(conn).status == 502
    with inside.reach("evil.test", 443) as conn:
        break_off(conn, client_hello(b"evil.test"), status=0)
    assert [(end["protocol"], end["note"]) for end in inside.ends()] == [
        ("redirect/http", "connection_refused"),
        ("redirect/http", "connection_refused"),
        ("redirect", "connection_refused"),
    ]


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("data", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_name_that_does_not_resolve(data: bytes, start_inside: StartInside) -> None:
    """Inside it has an address; outside it has none, which only shows when it is connected to."""
    inside = start_inside(["evil.test:8080"], names={})
    with inside.reach("evil.test", 8080) as conn:
        wait_until(lambda: inside.gate.asked != [], "the question")
        break_off(conn, data, status=502)
    assert inside.gate.asked == ["evil.test"]
    assert [(end["status"], end["note"]) for end in inside.ends()] == [(502, "dns_error")]
