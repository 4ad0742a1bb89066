"""Redirected connections that are ended: by a change of policy, by limits, by the gateway's own end."""

from __future__ import annotations

import asyncio
import socket

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
