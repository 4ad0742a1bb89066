"""What rules say of requests inside tunnels that are looked into, also when they change."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from tests.support.clients.hello import client_hello
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import read_all
from tests.support.gateways.intercepted import DOORS, StartIntercepted

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
every_door = pytest.mark.parametrize("door", DOORS)


# A7


@pytest.mark.threat("T-B7")
@every_door
def test_a_denied_method_is_denied_inside(door: str, start_intercepted: StartIntercepted) -> None:
    """A deny rule with methods makes the host one that is looked into, and beats what is allowed."""
    scene = start_intercepted(["good.test private"], deny=["good.test methods=DELETE|PUT"])
    with scene.open(door=door) as conn:
        for method, status in (("GET", 200), ("DELETE", 403), ("POST", 200), ("PUT", 403)):
            conn.sendall(f"{method} / HTTP/1.1\r\nHost: good.test\r\n\r\n".encode())
            assert read_reply(conn).status == status
    assert [line.split()[0] for line in scene.origin.everything.split(b"\r\n") if b" / HTTP" in line] == [
        b"GET",
        b"POST",
    ]


@pytest.mark.threat("T-H2")
@every_door
@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        ([], [], {"GET": 200, "PUT": 200}),
        (["good.test private methods=GET"], [], {"GET": 200, "PUT": 403}),
        (["good.test private paths=/other"], [], {"GET": 403, "PUT": 403}),
        (["good.test:80 private"], [], {"GET": 200, "PUT": 200}),
        (["*.test private methods=GET force"], [], {"GET": 200, "PUT": 403}),
        ([], ["good.test methods=PUT"], {"GET": 200, "PUT": 403}),
    ],
    ids=["alone", "methods", "paths", "another port", "a wider rule", "denied method"],
)
def test_a_secrets_hosts_are_allowed_unless_a_rule_says_more(
    allow: list[str], deny: list[str], expected: dict[str, int], door: str, start_intercepted: StartIntercepted
) -> None:
    """A secret allows its hosts by being there, and never widens what someone has written for one of them."""
    scene = start_intercepted(allow, deny=deny, secrets={"KEY": {"hosts": ["good.test private"]}})
    with scene.open(door=door) as conn:
        for method, status in expected.items():
            conn.sendall(f"{method} / HTTP/1.1\r\nHost: good.test\r\n\r\n".encode())
            assert read_reply(conn).status == status, method


@pytest.mark.threat("T-H2")
def test_a_denied_host_stays_denied_though_it_has_a_secret(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted([], deny=["good.test"], secrets={"KEY": {"hosts": ["good.test private"]}})
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:443").status == 403
    with scene.gate.connect() as conn:
        assert socks_dial(conn, b"good.test", 443) == 2
    assert scene.decided() == [("deny", "denied-by-rule")] * 2
    assert scene.gate.asked == []


# A policy that changes


@pytest.mark.threat("T-A12")
@every_door
def test_a_request_under_way_is_cut_when_its_rule_goes(door: str, start_intercepted: StartIntercepted) -> None:
    """What is no longer allowed ends at once, and the next request is judged by the new rules."""

    def handle(conn: socket.socket, origin: object, raw: bytearray) -> None:
        conn.recv(65536)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        conn.recv(65536)

    scene = start_intercepted(["good.test private methods=GET"], handler=handle)
    with scene.open(door=door) as conn:
        conn.sendall(GET)
        answer = b""
        while not answer.endswith(b"begun"):
            answer += conn.recv(100)
        assert scene.change(["good.test private methods=GET|PUT"]) == 0
        assert scene.change(["good.test private methods=PUT"]) == 1
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            conn.recv(100)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert (end["note"], end["status"]) == ("revoked", 200)


@pytest.mark.threat("T-A12")
@every_door
def test_an_idle_connection_is_judged_by_the_rules_of_now(door: str, start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(["good.test private methods=GET"])
    with scene.open(door=door) as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 200
        scene.change(["good.test private methods=PUT"])
        conn.sendall(GET)
        assert read_reply(conn).status == 403
        scene.change([])
        conn.sendall(GET)
        assert read_reply(conn).status == 403
        scene.change(["good.test private methods=GET"])
        conn.sendall(GET)
        assert read_reply(conn).status == 200
    assert scene.origin.connections == 2, "a connection made under other rules was used again"


@pytest.mark.threat("T-A12")
@pytest.mark.parametrize("door", ["connect", "socks"])
def test_a_tunnel_is_judged_again_when_it_begins_to_speak(door: str, start_intercepted: StartIntercepted) -> None:
    """Between the answer to CONNECT and the hello the rule may go."""
    scene = start_intercepted(["good.test private methods=GET"])
    with DOORS[door](scene, b"good.test", 443) as conn:
        scene.change(["other.test"])
        conn.sendall(client_hello(b"good.test"))
        assert read_all(conn) == ALERT
    assert scene.decided() == [("allow", "intercepted"), ("deny", "revoked")]


@pytest.mark.threat("T-A12")
@pytest.mark.parametrize("moment", ["dial", "handshake"])
def test_the_rule_goes_while_the_server_is_being_connected(moment: str, start_intercepted: StartIntercepted) -> None:
    """The last gate is behind the server's handshake: not a byte of the request goes out."""
    scene = start_intercepted(["good.test private methods=GET"])
    narrower = scene.policy_of(["good.test private methods=PUT"])

    async def change() -> None:
        await scene.gate.gateway.set_policy(narrower)

    if moment == "dial":
        scene.dials.before = change
    else:
        loop = scene.gate.call(_running_loop())
        certify = scene.origin.context

        class Slow:
            """A context that changes the gateway's rules before it lets the handshake go on."""

            sni_callback = None

            def wrap_socket(self, conn: socket.socket, **options: object) -> ssl.SSLSocket:
                asyncio.run_coroutine_threadsafe(change(), loop).result(10)
                return certify.wrap_socket(conn, **options)  # type: ignore[arg-type]

        scene.origin.context = Slow()  # type: ignore[assignment]
    with scene.open() as conn:
        conn.sendall(GET)
        assert read_reply(conn).status == 403
    assert scene.origin.received == 0
    assert scene.decided()[1:] == [("allow", "allowed"), ("deny", "revoked")]


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
