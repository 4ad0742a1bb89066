"""Placeholders that are sent where their secret must not go."""

from __future__ import annotations

import base64
import gzip
import socket
from typing import Any

import pytest

from tests.support.clients.talk import read_reply
from tests.support.gateways.doors import Opener, open_connect, open_redirect, open_socks
from tests.support.gateways.gate import read_all
from tests.support.gateways.intercepted import DOORS, Intercepted, StartIntercepted
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls
from tests.support.origins.raw import RawOrigin, keep_silent
from tests.threats.secrets.destinations import REAL, RULES, SECRETS, start

every_door = pytest.mark.parametrize("door", DOORS)
every_tunnel = pytest.mark.parametrize("open_tunnel", [open_connect, open_socks, open_redirect])


def escape_all(data: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in data)


HEADS = {
    "a header": lambda key: b"GET / HTTP/1.1\r\nX-Key: %b\r\n" % key,
    "a cookie": lambda key: b"GET / HTTP/1.1\r\nCookie: a=b; key=%b; c=d\r\n" % key,
    "the name of a header": lambda key: b"GET / HTTP/1.1\r\n%b: x\r\n" % key.replace(b"~", b"-"),
    "Bearer": lambda key: b"GET / HTTP/1.1\r\nAuthorization: Bearer %b\r\n" % key,
    "Basic, user": lambda key: b"GET / HTTP/1.1\r\nAuthorization: Basic %b\r\n" % base64.b64encode(key + b":"),
    "Basic, password": lambda key: b"GET / HTTP/1.1\r\nAuthorization: Basic %b\r\n" % base64.b64encode(b"ab:" + key),
    "Basic, one further": lambda key: b"GET / HTTP/1.1\r\nAuthorization: Basic %b\r\n" % base64.b64encode(b"a:" + key),
    "the query": lambda key: b"GET /?a=%b&b=c HTTP/1.1\r\n" % key,
    "the path": lambda key: b"GET /%b/x HTTP/1.1\r\n" % key,
    "the path, escaped": lambda key: b"GET /%b HTTP/1.1\r\n" % escape_all(key),
    "the query, escaped": lambda key: b"GET /?%b HTTP/1.1\r\n" % escape_all(key).upper(),
    "a header in hex": lambda key: b"GET / HTTP/1.1\r\nX-Key: %b\r\n" % key.hex().encode(),
}


def chunks(data: bytes, size: int) -> bytes:
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def counted(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n" % (lines, len(body))


# The head without its Host, and the body.
BODIES = {
    "JSON": lambda key: (counted(b'{"k": "%b"}' % key), b'{"k": "%b"}' % key),
    "a form": lambda key: (counted(b"k=" + key, b"Content-Type: application/x-www-form-urlencoded"), b"k=" + key),
    "at the end": lambda key: (counted(bytes(300_000) + key), bytes(300_000) + key),
    "chunks of a byte": lambda key: (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", chunks(b"k=" + key, 1)),
    "gzip": lambda key: (counted(gzip.compress(key), b"Content-Encoding: gzip"), gzip.compress(key)),
    "trailers": lambda key: (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        b"2\r\nhi\r\n0\r\nX-Key: %b\r\n\r\n" % key,
    ),
}  # fmt: skip


def assert_refused_once(scene: Intercepted, names: list[str], over: str = "") -> None:
    """One record says what was tried, with the secret's name and never its value or its placeholder."""
    scene.settle()
    denials = [each for each in scene.records() if each["event"] == "decision" and each["verdict"] == "deny"]
    assert [(each["reason"], each["secrets"], each["status"]) for each in denials] == [
        ("secret-to-wrong-host", names, 403)
    ]
    everything = scene.origin.everything + scene.plain.everything + scene.log()
    for name in names:
        assert scene.placeholder(name) not in everything
    assert REAL not in everything


@pytest.mark.threat("T-H2")
@every_door
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_placeholder_in_the_head_for_another_host_is_refused(
    head: Any, door: str, start_intercepted: StartIntercepted
) -> None:
    """Another host, allowed and looked into. Refused before anything is dialled."""
    scene = start(start_intercepted)
    with scene.open("other.test", door=door) as conn:
        conn.sendall(head(scene.placeholder()) + b"Host: other.test\r\n\r\n")
        reply = read_reply(conn)
        assert reply.status == 403
        assert b"KEY must not be sent to other.test:443" in reply.body
        assert scene.placeholder() not in reply.head + reply.body
    assert_refused_once(scene, ["KEY"])
    assert scene.origin.connections == 0


@pytest.mark.threat("T-H2")
@every_door
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_control_without_a_placeholder_the_same_passes(
    head: Any, door: str, start_intercepted: StartIntercepted
) -> None:
    """The control: what merely looks like a placeholder is no one's business."""
    scene = start(start_intercepted)
    guess = b"exeat_" + b"0" * 32
    with scene.open("other.test", door=door) as conn:
        conn.sendall(head(guess) + b"Host: other.test\r\n\r\n")
        assert read_reply(conn).status == 200
    assert ("deny", "secret-to-wrong-host") not in scene.decided()


@pytest.mark.threat("T-H2")
@every_door
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_placeholder_in_the_body_for_another_host_is_refused(
    body: Any, door: str, start_intercepted: StartIntercepted
) -> None:
    """Found however it is cut or packed. The server may have seen the beginning, and never a whole request."""
    scene = start(start_intercepted)
    head, data = body(scene.placeholder())
    with scene.open("other.test", door=door) as conn:
        conn.sendall(head + b"Host: other.test\r\n\r\n" + data)
        assert read_reply(conn).status == 403
    assert_refused_once(scene, ["KEY"])
    (end,) = [each for each in scene.ends() if each["method"] == "POST"]
    assert (end["status"], end["note"]) == (403, "secret-to-wrong-host")
    assert not scene.origin.everything.endswith(data)
    assert not scene.origin.everything.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.threat("T-H2")
@pytest.mark.parametrize(("kind", "body"), BODIES.items(), ids=BODIES)
def test_control_the_same_body_to_the_right_host(kind: str, body: Any, start_intercepted: StartIntercepted) -> None:
    """It gets there with the value, but for a compressed one, into which no value is put anywhere."""
    scene = start(start_intercepted)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while REAL not in raw:
            if not origin.read(conn, raw):
                return
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    scene.origin._handler = handle
    head, data = body(scene.placeholder())
    head = head.replace(b"application/x-www-form-urlencoded", b"text/plain")
    with scene.open() as conn:
        conn.sendall(head + b"Host: good.test\r\n\r\n" + data)
        assert read_reply(conn).status == (415 if kind == "gzip" else 200)
    assert scene.placeholder() not in scene.origin.everything


@pytest.mark.threat("T-H2")
def test_several_secrets_in_one_request(start_intercepted: StartIntercepted) -> None:
    """The names of all that do not belong there; the one that does is not among them, and does not go out."""
    scene = start(start_intercepted)
    for host, names in (("other.test", ["KEY", "SPARE"]), ("good.test", ["SPARE"])):
        with scene.open(host) as conn:
            keys = scene.placeholder(), scene.placeholder("SPARE")
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nA: %b\r\nB: %b\r\n\r\n" % (host.encode(), *keys))
            assert read_reply(conn).status == 403
        scene.settle()
        denied = [each for each in scene.records() if each["event"] == "decision" and each["verdict"] == "deny"]
        assert denied[-1]["secrets"] == names
    assert scene.origin.connections == 0


# Not over TLS


@pytest.mark.threat("T-H2")
@pytest.mark.parametrize("host", ["good.test", "other.test"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_plain_http_gets_no_placeholder(head: Any, host: str, start_intercepted: StartIntercepted) -> None:
    """`http://` to the secret's own host is the wrong host too."""
    scene = start(start_intercepted)
    request: bytes = head(scene.placeholder()) + b"Host: %b\r\n\r\n" % host.encode()
    method, _, rest = request.partition(b" ")
    with scene.gate.connect() as conn:
        conn.sendall(b"%b http://%b%b" % (method, host.encode(), rest))
        reply = read_reply(conn)
        assert reply.status == 403
        assert b"over plain HTTP" in reply.body
    assert_refused_once(scene, ["KEY"])
    assert scene.plain.connections == 0


@pytest.mark.threat("T-H2")
@every_tunnel
@pytest.mark.parametrize("host", ["good.test", "other.test"])
def test_plain_http_through_a_tunnel_gets_no_placeholder(
    host: str, open_tunnel: Opener, start_intercepted: StartIntercepted
) -> None:
    scene = start(start_intercepted)
    with open_tunnel(scene, host.encode(), 80) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nX-Key: %b\r\n\r\n" % (host.encode(), scene.placeholder()))
        assert read_reply(conn).status == 403
    assert_refused_once(scene, ["KEY"])
    assert scene.plain.received == 0


@pytest.mark.threat("T-H2")
@pytest.mark.parametrize("host", ["good.test", "other.test"])
def test_plain_http_body_gets_no_placeholder(host: str, start_intercepted: StartIntercepted) -> None:
    scene = start(start_intercepted)
    body = b"k=" + scene.placeholder()
    with scene.gate.connect() as conn:
        conn.sendall(
            b"POST http://%b/ HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (host.encode(), host.encode(), len(body), body)
        )
        assert read_reply(conn).status == 403
    assert_refused_once(scene, ["KEY"])


@pytest.mark.threat("T-H2")
@every_tunnel
@pytest.mark.parametrize("size", [1, 1000], ids=["byte by byte", "at once"])
@pytest.mark.parametrize("host", [b"good.test", b"other.test"])
def test_a_tunnel_in_clear_text_is_cut(
    host: bytes, size: int, open_tunnel: Opener, start_intercepted: StartIntercepted
) -> None:
    """Any protocol without TLS. Control: the same tunnel carries what holds no placeholder, until it does."""
    scene = start(start_intercepted, plain_handler=keep_silent)
    secret = b"PASSWORD %b\n" % scene.placeholder()
    with open_tunnel(scene, host, 5432) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.sendall(b"HELO there\n")
        wait_until(lambda: scene.plain.everything == b"HELO there\n", "the harmless words to arrive")
        try:
            for at in range(0, len(secret), size):
                conn.sendall(secret[at : at + size])
            assert read_all(conn) == b""
        except ConnectionError:
            pass
    assert_refused_once(scene, ["KEY"])
    assert [each["note"] for each in scene.ends()] == ["secret-to-wrong-host"]


# The right host, and yet not the right place


@pytest.mark.threat("T-H2")
@every_door
def test_another_port_of_the_right_host(door: str, start_intercepted: StartIntercepted) -> None:
    """A secret is bound to ports as well. Control: on its own port the same request passes."""
    scene = start(start_intercepted)
    for port, status in ((8443, 403), (443, 200)):
        with scene.open(port=port, door=door) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\nX-Key: %b\r\n\r\n" % (port, scene.placeholder()))
            assert read_reply(conn).status == status
    assert scene.origin.connections == 1
    assert scene.origin.everything.count(b"X-Key: %b\r\n" % REAL) == 1


@pytest.mark.threat("T-H2")
@pytest.mark.parametrize("host", ["other.test", "evil.test", "good.test.evil.test", "good.test:8443"])
def test_a_host_header_does_not_make_another_place_the_right_one(
    host: str, start_intercepted: StartIntercepted
) -> None:
    """From either side: the tunnel decides, and whoever says otherwise gets 421."""
    scene = start(start_intercepted)
    for tunnel, said in (("good.test", host), ("other.test", "good.test")):
        with scene.open(tunnel) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nX-Key: %b\r\n\r\n" % (said.encode(), scene.placeholder()))
            assert read_reply(conn).status == 421
    assert scene.origin.connections == 0


@pytest.mark.threat("T-H2")
def test_the_address_of_the_right_host_is_another_host(start_intercepted: StartIntercepted) -> None:
    """What a name leads to is not the name."""
    scene = start_intercepted(["127.0.0.1:443 methods=GET"], secrets=SECRETS)
    with scene.open("127.0.0.1") as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
        assert read_reply(conn).status == 403
    assert_refused_once(scene, ["KEY"])


@pytest.mark.threat("T-H2")
def test_redirects_are_not_followed(start_intercepted: StartIntercepted) -> None:
    """A 302 is the client's to follow, and then it is a request like any other."""
    response = b"HTTP/1.1 302 Found\r\nLocation: https://other.test/?k=%b\r\nContent-Length: 0\r\n\r\n" % REAL.replace(
        b" ", b"%20"
    )

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            conn.sendall(response)

    scene = start(start_intercepted, handler=handle)
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
        reply = read_reply(conn)
        assert reply.status == 302
        location = reply.head.partition(b"Location: ")[2].partition(b"\r\n")[0]
        assert b"sk-real" not in location
    assert scene.origin.connections == 1
    target = location.removeprefix(b"https://other.test")
    with scene.open("other.test") as conn:
        conn.sendall(b"GET %b HTTP/1.1\r\nHost: other.test\r\n\r\n" % target)
        assert read_reply(conn).status == 403
    assert scene.origin.connections == 1


@pytest.mark.threat("T-H2")
def test_a_server_that_fails_verification_after_it_passed(start_intercepted: StartIntercepted) -> None:
    """Every connection is verified, not every host once."""
    scene = start(start_intercepted)
    request = b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % scene.placeholder()
    for context, status in ((tls.server_context(), 200), (tls.unknown_root(), 502)):
        scene.origin.context = context
        scene.change(RULES)  # so that no connection is kept
        with scene.open() as conn:
            conn.sendall(request)
            assert read_reply(conn).status == status
    assert scene.origin.everything.count(REAL) == 1
