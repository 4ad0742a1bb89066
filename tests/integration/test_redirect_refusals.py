"""Redirected connections that come to nothing, or to an end: what the client sees, and what is on record."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from exeat.gateway.doors.redirect import NOWHERE
from exeat.gateway.limits import Limits
from exeat.sources import make_policy
from tests.support.clients.hello import client_hello
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartInside, StartRawOrigin
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.inside import Inside, was_reset
from tests.support.gateways.redirected import PORT
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import PING, PONG, TLS_SEEN, keep_silent, speak_first

pytestmark = pytest.mark.usefixtures("quick_sweep")

BANNER = b"SSH-2.0-server\r\n"
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


# Servers that cannot be had
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


# Changes of policy


def test_a_reload_cuts_what_is_no_longer_allowed(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """The tunnel whose rule is gone; the other one lives."""
    origin = start_raw_origin(speak_first(BANNER))
    rules = [f"good.test:{origin.port} private", f"*.wild.test:{origin.port} private"]
    inside = start_inside(rules)
    with inside.reach("good.test", origin.port) as good, inside.reach("a.wild.test", origin.port) as wild:
        assert read_until(good, b"\n") == read_until(wild, b"\n") == BANNER
        assert inside.gate.set_policy(make_policy(rules[:1])) == 1
        assert read_all(wild) == b""
        good.sendall(b"still here\n")
        assert read_until(good, b"\n") == b"still here\n"
    assert sorted(end["note"] for end in inside.ends()) == ["", "revoked"]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (["good.test private"], [], "not-listed"),
        (["good.test private allow_sni_mismatch"], ["good.test private"], "sni-mismatch"),
        ([], ["good.test private"], "sni-mismatch"),
    ],
)
def test_a_client_is_judged_by_the_policy_of_when_it_speaks(
    before: list[str], after: list[str], reason: str, start_inside: StartInside
) -> None:
    """On a web port it may have connected long before."""
    inside = start_inside(before)
    with inside.reach("good.test", 443) as conn:
        wait_until(lambda: inside.holds.live == 1, "the connection")
        inside.gate.set_policy(make_policy(after))
        conn.sendall(client_hello(b"evil.test"))
        assert read_all(conn) == ALERT
    assert inside.denial()["reason"] == reason


def test_a_port_that_is_allowed_while_the_client_waits(
    start_inside: StartInside, start_raw_origin: StartRawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is then served like any other: dialled, and what the client says later is judged."""
    monkeypatch.setattr("exeat.gateway.doors.redirect._GRACE_S", 5.0)
    origin = start_raw_origin()
    inside = start_inside([])
    for name, answer in ((b"good.test", TLS_SEEN), (b"evil.test", ALERT)):
        inside.gate.set_policy(make_policy([]))
        with inside.reach("good.test", origin.port) as conn:
            wait_until(lambda: inside.holds.live == 1, "the connection")
            inside.gate.set_policy(make_policy([f"good.test:{origin.port} private"]))
            conn.sendall(client_hello(name))
            assert read_all(conn) == answer
        inside.settle()
    assert [r["reason"] for r in inside.decisions()] == ["allowed", "allowed", "sni-mismatch"]


# The gateway itself


def test_the_listener_is_a_proxy_for_whoever_connects_to_it(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """By its own address of either family: absolute URIs, CONNECT and SOCKS5, with the records of those."""
    origin = start_raw_origin()
    inside = start_inside([f"good.test:{origin.port} private"])
    authority = b"good.test:%d" % origin.port
    for host in ("127.0.0.1", "::1"):
        with inside.reach(host, PORT) as conn:
            conn.sendall(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority))
            assert read_reply(conn).status == 200
        with inside.reach(host, PORT) as conn:
            assert connect_dial(conn, authority).status == 200
            conn.sendall(PING)
            assert read_until(conn, b"\n") == PONG
        with inside.reach(host, PORT) as conn:
            assert socks_dial(conn, b"good.test", origin.port) == 0
            conn.sendall(PING)
            assert read_until(conn, b"\n") == PONG
    assert [r["protocol"] for r in inside.decisions()] == ["http", "connect", "socks5"] * 2


def test_credentials_are_for_those_who_can_give_some(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """A redirected client knows of no proxy to give them to; one that uses it as such must."""
    inside = start_inside(["good.test private"], web=start_raw_origin(), credentials=("user", "word"))
    with inside.reach("good.test", 80) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).status == 200
    with inside.reach("good.test", 443) as conn:
        conn.sendall(client_hello(b"good.test"))
        assert read_all(conn) == TLS_SEEN
    with inside.reach("127.0.0.1", PORT) as conn:
        conn.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).status == 407


@pytest.mark.threat("T-E4")
@pytest.mark.parametrize("listener", ["outside", "inside"])
def test_our_own_ports_are_no_destination(listener: str, start_inside: StartInside) -> None:
    """A name that leads to the gateway itself, on a port of either of its listeners."""
    inside = start_inside(["good.test:* private"])
    port = inside.gate.port if listener == "outside" else PORT
    with inside.reach("good.test", port) as conn:
        conn.sendall(PING)
        assert was_reset(conn)
    (record,) = inside.decisions()
    assert (record["verdict"], record["reason"]) == ("deny", "own-address")
    assert inside.detour.made == []


def test_port_0_is_malformed(start_inside: StartInside) -> None:
    """connect() takes it, no rule can."""
    inside = start_inside(["good.test:* private"])
    with pytest.raises(ConnectionResetError), inside.reach("good.test", 0) as conn:
        conn.recv(1)
    record = inside.denial()
    assert (record["host"], record["port"], record["reason"]) == ("good.test", 0, "malformed")


def test_a_destination_that_the_kernel_does_not_tell(
    start_inside: StartInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for a client that wants a proxy, nor for anything else."""
    monkeypatch.setattr("exeat.gateway.gateway.find_destination", lambda transport: NOWHERE)
    inside = start_inside(["*:* private force"])
    with pytest.raises(ConnectionResetError), inside.reach("good.test", 80) as conn:
        conn.recv(1)
    assert inside.denial()["reason"] == "unknown-address"


def test_one_connection_too_many_breaks(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """Redirected, it breaks: what it speaks is not known. A client of the proxy is told, as ever."""
    origin = start_raw_origin(speak_first(BANNER))
    inside = start_inside([f"good.test:{origin.port} private"], limits=Limits(max_connections=1))
    with inside.reach("good.test", origin.port) as first:
        assert read_until(first, b"\n") == BANNER
        with pytest.raises(ConnectionResetError), inside.reach("good.test", origin.port) as second:
            second.recv(1)
        with inside.reach("127.0.0.1", PORT) as third:
            assert read_reply(third).status == 503


def stop(inside: Inside) -> None:
    inside.gate.call(inside.gate.gateway.aclose())


def test_stopping_ends_every_kind_of_connection(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """One that waits for its first byte, one that is denied, and one under way; the denial and the end on record."""
    origin = start_raw_origin(speak_first(BANNER))
    inside = start_inside([f"good.test:{origin.port} private", "good.test private"])
    with (
        inside.reach("good.test", 443) as waiting,
        inside.reach("evil.test", 443) as denied,
        inside.reach("good.test", origin.port) as live,
    ):
        assert read_until(live, b"\n") == BANNER
        wait_until(lambda: inside.holds.live == 3, "three connections")
        stop(inside)
        assert read_all(waiting) == read_all(denied) == read_all(live) == b""
    assert inside.holds.live == 0
    assert [(r["host"], r["verdict"]) for r in inside.decisions()] == [("good.test", "allow"), ("evil.test", "deny")]
    assert [end["note"] for end in inside.ends()] == ["gateway-stopped"]


def test_a_client_that_leaves_while_its_server_is_sought(
    start_inside: StartInside, start_raw_origin: StartRawOrigin
) -> None:
    """What was begun is ended, on record, and the address given back."""
    origin = start_raw_origin(keep_silent)
    inside = start_inside(["good.test private"], web=origin)
    left = asyncio.Event()

    async def go_on() -> None:
        left.set()

    inside.detour.before = left.wait
    with inside.reach("good.test", 443) as conn:
        conn.sendall(client_hello(b"good.test"))
        wait_until(lambda: inside.detour.made != [], "the dial")
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    inside.gate.call(go_on())
    assert [r["verdict"] for r in inside.decisions()] == ["allow"]
    assert len(inside.ends()) == 1
    assert (inside.holds.begun, inside.holds.live) == (1, 0)


def test_silent_servers_and_clients_are_ended(start_inside: StartInside, start_raw_origin: StartRawOrigin) -> None:
    """A tunnel in which nothing moves ends by the same limit as any other."""
    origin = start_raw_origin(keep_silent)
    inside = start_inside([f"good.test:{origin.port} private"], limits=Limits(idle_s=0.2))
    with inside.reach("good.test", origin.port) as conn:
        assert read_all(conn) == b""
    assert [end["note"] for end in inside.ends()] == ["idle"]
