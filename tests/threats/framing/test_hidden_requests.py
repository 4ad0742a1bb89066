"""Requests that hide in others: behind them, in tunnels, behind upgrades and other spellings."""

from __future__ import annotations

import socket

import pytest

from exeat.sources import make_policy
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import TUNNELS, Opener
from tests.support.gateways.framing import (
    ACCEPT,
    PATHS,
    WEBSOCKET,
    post,
    statuses,
    websocket_answer,
)
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import Scene
from tests.support.origins.plain import OK

every_tunnel = pytest.mark.parametrize("open_tunnel", TUNNELS, ids=["connect", "socks", "redirect"])


def fill(scene: Scene, text: str | bytes) -> bytes:
    raw = text.encode("latin-1") if isinstance(text, str) else text
    return raw.replace(b"{port}", b"%d" % scene.port)


# B4


def get(scene: Scene, host: str, path: str = "/") -> bytes:
    return fill(scene, f"GET http://{host}:{{port}}{path} HTTP/1.1\r\nHost: {host}:{{port}}\r\n\r\n")


@pytest.mark.threat("T-B4")
@pytest.mark.parametrize("pipelined", [True, False], ids=["one segment", "one by one"])
def test_every_request_on_a_connection_is_judged(pipelined: bool, scene: Scene) -> None:
    """A first good request buys nothing for the second; the third, good again, is served."""
    requests = [get(scene, "good.test", "/1"), get(scene, "evil.test", "/2"), get(scene, "a.wild.test", "/3")]
    mark = scene.mark()
    with scene.gate.connect() as conn:
        found = []
        if pipelined:
            conn.sendall(b"".join(requests))
            conn.shutdown(socket.SHUT_WR)
            found = statuses(read_all(conn))
        else:
            for request in requests:
                conn.sendall(request)
                found.append(read_reply(conn).status)
    assert found == [200, 403, 200]
    seen = scene.since(mark, decisions=3)
    assert [(record["host"], record["verdict"]) for record in seen.decisions] == [
        ("good.test", "allow"),
        ("evil.test", "deny"),
        ("a.wild.test", "allow"),
    ]
    assert b"/2" not in scene.origin.everything


@pytest.mark.threat("T-B4")
@every_tunnel
def test_requests_inside_a_tunnel_are_judged_one_by_one(open_tunnel: Opener, scene: Scene) -> None:
    """Inside a tunnel the second request cannot turn to another host, nor open a tunnel of its own."""
    inner = b"GET /%b HTTP/1.1\r\nHost: %b:%d\r\n\r\n"
    for wish in (
        inner % (b"2", b"evil.test", scene.port),
        inner % (b"2", b"a.wild.test", scene.port),
        get(scene, "evil.test", "/2"),
        get(scene, "good.test", "/2"),
        b"CONNECT evil.test:%d HTTP/1.1\r\nHost: evil.test\r\n\r\n" % scene.port,
        b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port),
    ):
        with open_tunnel(scene, b"good.test", scene.port) as conn:
            conn.sendall(inner % (b"1", b"good.test", scene.port) + wish + inner % (b"3", b"good.test", scene.port))
            found = statuses(read_all(conn))
        assert found in ([200, 421], [200, 400], [200, 405]), wish
    sent = scene.origin.everything
    assert sent.count(b"GET /1 ") == 6
    assert sent.count(b"GET ") == 6
    assert b"evil.test" not in sent
    assert b"CONNECT" not in sent


@pytest.mark.threat("T-B4")
@every_tunnel
def test_inside_a_tunnel_the_control_is_served(open_tunnel: Opener, scene: Scene) -> None:
    """The control: three requests to the tunnel's own host, in one segment, are all served."""
    inner = b"GET /%d HTTP/1.1\r\nHost: good.test:%d\r\n\r\n"
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(b"".join(inner % (number, scene.port) for number in range(3)))
        assert [read_reply(conn).status for _ in range(3)] == [200, 200, 200]


@pytest.mark.threat("T-B4")
def test_a_denied_request_with_a_body_ends_the_connection(scene: Scene) -> None:
    """The body of a refused request is not taken for the next one."""
    hidden = get(scene, "good.test", "/hidden")
    request = fill(scene, "POST http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n")
    for framing in (b"Content-Length: %d\r\n\r\n" % len(hidden), b"Transfer-Encoding: chunked\r\n\r\n"):
        with scene.gate.connect() as conn:
            conn.sendall(request + framing + hidden)
            assert statuses(read_all(conn)) == [403]
    assert scene.origin.connections == 0


# B5


def upgrade(scene: Scene, headers: str) -> bytes:
    return fill(scene, f"GET http://good.test:{{port}}/ HTTP/1.1\r\nHost: good.test:{{port}}\r\n{headers}\r\n")


@pytest.mark.threat("T-B5")
@pytest.mark.parametrize(
    "headers",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "Connection: Upgrade\r\nUpgrade: connect-udp\r\n",
    ],
)
def test_an_upgrade_to_anything_but_websocket_is_stripped(headers: str, scene: Scene) -> None:
    """The server is asked without Upgrade, and the bytes behind the request are the next request."""
    with scene.gate.connect() as conn:
        conn.sendall(upgrade(scene, headers) + get(scene, "evil.test", "/2"))
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 403]
    sent = scene.origin.everything.lower()
    for word in (b"upgrade", b"h2c", b"http2-settings", b"evil"):
        assert word not in sent


@pytest.mark.threat("T-B5")
def test_an_upgrade_answered_with_200_opens_no_relay(start_scene: StartScene) -> None:
    """Without a 101 what follows is the next request, judged like any other."""
    scene = start_scene(handler=websocket_answer(OK))
    with scene.gate.connect() as conn:
        conn.sendall(upgrade(scene, WEBSOCKET) + get(scene, "evil.test", "/2"))
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 403]
    assert b"/2" not in scene.origin.everything


@pytest.mark.threat("T-B5")
@pytest.mark.parametrize(
    ("headers", "response"),
    [
        (WEBSOCKET, b"HTTP/1.1 101 X\r\n" + ACCEPT.replace(b"s3pP", b"AAAA")),
        (WEBSOCKET, b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        (WEBSOCKET, b"HTTP/1.1 101 X\r\n" + ACCEPT.replace(b"Upgrade: websocket", b"Upgrade: h2c")),
        ("", b"HTTP/1.1 101 X\r\n" + ACCEPT),
        ("Connection: Upgrade\r\nUpgrade: h2c\r\n", b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
    ],
    ids=["wrong accept", "no accept", "another protocol", "not asked for", "h2c"],
)
def test_a_101_that_is_not_in_order_opens_no_relay(headers: str, response: bytes, start_scene: StartScene) -> None:
    """Only the 101 of a WebSocket that was asked for, with the right digest, joins the streams."""
    scene = start_scene(handler=websocket_answer(response))
    with scene.gate.connect() as conn:
        conn.sendall(upgrade(scene, headers) + b"raw bytes")
        assert statuses(read_all(conn)) == [502]
    assert b"raw bytes" not in scene.origin.everything


@pytest.mark.threat("T-B5")
def test_control_a_websocket_in_order_is_relayed(start_scene: StartScene) -> None:
    """The control: the same probe with a right answer is relayed both ways."""
    scene = start_scene(handler=websocket_answer(b"HTTP/1.1 101 X\r\n" + ACCEPT))
    with scene.gate.connect() as conn:
        conn.sendall(upgrade(scene, WEBSOCKET) + b"raw bytes")
        answer = read_until(conn, b"RAW BYTES")
        assert answer.startswith(b"HTTP/1.1 101")


# B6


@pytest.mark.threat("T-B6")
def test_proxy_credentials_stay_here(start_scene: StartScene) -> None:
    """What was said to the gateway is not said to the server; what was said to the server is."""
    scene = start_scene(credentials=("me", "pass"))
    headers = (
        "Proxy-Authorization: Basic bWU6cGFzcw==\r\nProxy-Connection: keep-alive\r\nproxy-x: 1\r\nKeep-Alive: 5\r\n"
        "TE: gzip\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nAuthorization: Bearer x\r\nX-End: 1\r\n"
    )
    request = upgrade(scene, headers)
    assert statuses(scene.gate.send(request)) == [200]
    sent = scene.origin.everything.lower()
    for word in (b"proxy", b"bwu6", b"keep-alive", b"te: gzip", b"x-hop", b"connection:"):
        assert word not in sent, word
    assert b"authorization: bearer x" in sent
    assert b"x-end: 1" in sent
    for wrong in ("", "Proxy-Authorization: Basic bWU6d3Jvbmc=\r\n", "Proxy-Authorization: Bearer bWU6cGFzcw==\r\n"):
        assert statuses(scene.gate.send(upgrade(scene, wrong + "Authorization: Basic bWU6cGFzcw==\r\n"))) == [407]
    assert scene.origin.connections == 1


@pytest.mark.threat("T-B6")
def test_two_proxy_credentials_are_refused(start_scene: StartScene) -> None:
    """The right one next to a wrong one is neither."""
    scene = start_scene(credentials=("me", "pass"))
    headers = "Proxy-Authorization: Basic bWU6cGFzcw==\r\nProxy-Authorization: Basic bWU6d3Jvbmc=\r\n"
    assert statuses(scene.gate.send(upgrade(scene, headers))) == [400]
    assert scene.origin.connections == 0


# B7


@pytest.mark.threat("T-B7")
@pytest.mark.parametrize("kind", ["allowed paths", "denied paths"])
def test_the_path_that_was_judged_is_the_path_that_is_sent(kind: str, start_scene: StartScene) -> None:
    """Dot segments, their escapes and doubled slashes are gone before the judgement and stay gone."""
    if kind == "allowed paths":
        scene = start_scene(["good.test:{port} private paths=/pub/**"])
    else:
        scene = start_scene(["good.test:{port} private"])
        deny = [f"good.test:{scene.port} paths=/secret|/secret/**|/|/public|/PUB/**"]
        scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"], deny))
    expected = []
    for path, (clean, allowed) in PATHS.items():
        assert statuses(scene.gate.send(get(scene, "good.test", path))) == [200 if allowed else 403], path
        if allowed:
            expected.append(clean.encode())
    sent = [line.split(b" ")[1] for line in scene.origin.everything.split(b"\r\n") if line.startswith(b"GET ")]
    assert sent == expected


@pytest.mark.threat("T-B7")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_methods_are_judged_too(method: str, start_scene: StartScene) -> None:
    """A rule for GET is for GET, and cannot be met through a tunnel, where no one sees the method."""
    scene = start_scene(["good.test:{port} private methods=GET"])
    assert statuses(scene.gate.send(fill(scene, post(method=method)))) == [403]
    assert statuses(scene.gate.send(get(scene, "good.test"))) == [200]
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 403
    with scene.gate.connect() as conn:
        assert socks_dial(conn, b"good.test", scene.port) == 2


# B8


@pytest.mark.threat("T-B8")
@pytest.mark.parametrize(
    "data",
    [b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b"\x16\x03\x01\x00\x05hello", b"SSH-2.0-x\r\n", b"\0", b"\x80\x2e"],
)
def test_other_protocols_are_refused(data: bytes, scene: Scene) -> None:
    """SOCKS4, TLS, SSH and noise at the front door get one refusal and one record."""
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(data + b"\r\n\r\n")
        assert statuses(read_all(conn)) == [400]
    assert [record["reason"] for record in scene.since(mark, decisions=1).decisions] == ["malformed"]
    assert scene.origin.connections == 0


@pytest.mark.threat("T-B8")
@pytest.mark.parametrize(
    "headers", ["", "Host: good.test:{port}\r\n", "Connection: keep-alive\r\n", "Proxy-Connection: keep-alive\r\n"]
)
def test_http_1_0_is_judged_like_1_1(headers: str, start_scene: StartScene) -> None:
    """An old client gets the same policy, the same check of Host, and must show the same credentials."""
    scene = start_scene(credentials=("me", "pass"))
    login = "Proxy-Authorization: Basic bWU6cGFzcw==\r\n"
    good = f"GET http://good.test:{{port}}/ HTTP/1.0\r\n{headers}"
    evil = f"GET http://evil.test:{{port}}/ HTTP/1.0\r\n{headers.replace('good', 'evil')}"
    assert statuses(scene.gate.send(fill(scene, good + login + "\r\n"))) == [200]
    assert statuses(scene.gate.send(fill(scene, evil + login + "\r\n"))) == [403]
    assert statuses(scene.gate.send(fill(scene, good + "\r\n"))) == [407]
    assert scene.origin.connections == 1
    assert statuses(scene.gate.send(fill(scene, "CONNECT good.test:{port} HTTP/1.0\r\n\r\n"))) == [407]
