"""HTTP that two readers could read in two ways."""

from __future__ import annotations

import socket

import pytest

from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.framing import (
    B3_BAD_BODIES,
    SECOND,
    post,
    statuses,
)
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import Scene
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawOrigin, receive_body


def second(scene: Scene) -> bytes:
    """A request that is in order and allowed. Behind a malformed one it must not be served."""
    return b"GET http://good.test:%d%b HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (
        scene.port,
        SECOND.encode(),
        scene.port,
    )


def fill(scene: Scene, text: str | bytes) -> bytes:
    raw = text.encode("latin-1") if isinstance(text, str) else text
    return raw.replace(b"{port}", b"%d" % scene.port)


def assert_served(scene: Scene, request: bytes, count: int = 1) -> None:
    """The control: the request is served, and so is the one behind it."""
    with scene.gate.connect() as conn:
        conn.sendall(request)
        for _ in range(count):
            assert read_reply(conn).status == 200
        conn.sendall(second(scene))
        assert read_reply(conn).status == 200


# B1


@pytest.mark.threat("T-B1")
@pytest.mark.parametrize(
    "target",
    ["http://good.test:{port}/", "http://GOOD.test.:{port}/", "HTTP://Good.Test:{port}", "http://good.test:{port}?q"],
)
def test_spellings_of_one_host_agree_and_the_server_gets_one_of_them(target: str, scene: Scene) -> None:
    """The control: another case or a final dot is no disagreement, and the server is sent the canonical Host."""
    assert_served(scene, fill(scene, f"GET {target} HTTP/1.1\r\nHost: good.TEST:{{port}}\r\n\r\n"))
    assert scene.origin.everything.count(b"\r\nHost: good.test:%d\r\n" % scene.port) == 2
    assert b"GOOD" not in scene.origin.everything


@pytest.mark.threat("T-B1")
@pytest.mark.parametrize("door", ["connect", "socks"])
def test_a_name_inside_a_tunnel_to_an_address_is_refused(door: str, start_scene: StartScene) -> None:
    """An allowed address does not become another host because a Host header says so. Control: its own name."""
    scene = start_scene(["127.0.0.1:{port}", "good.test:{port} private"])
    for host, status in ((b"good.test", 421), (b"evil.test", 421), (b"127.0.0.1", 200)):
        with scene.gate.connect() as conn:
            if door == "connect":
                assert connect_dial(conn, b"127.0.0.1:%d" % scene.port).status == 200
            else:
                assert socks_dial(conn, b"127.0.0.1", scene.port, as_address=True) == 0
            conn.sendall(b"GET /%b HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host, host, scene.port))
            assert read_reply(conn).status == status
    assert b"good.test" not in scene.origin.everything
    assert b"evil.test" not in scene.origin.everything


@pytest.mark.threat("T-B1")
def test_an_address_that_is_not_listed_is_not_reached_with_a_good_host(scene: Scene) -> None:
    """The address decides, not the Host header that comes with it."""
    mark = scene.mark()
    answer = scene.gate.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port))
    assert statuses(answer) in ([400], [403])
    answer = scene.gate.send(fill(scene, "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"))
    assert statuses(answer) == [403]
    assert scene.since(mark).connections == 0


# B2 and B3: where a message ends


@pytest.mark.threat("T-B2", "T-B3")
def test_control_clear_framing_is_served(start_scene: StartScene) -> None:
    """The control of B2 and B3: the same probes with one meaning pass, are framed again, and the next one is served."""
    scene = start_scene(handler=receive_body)
    chunked = "Transfer-Encoding: chunked"
    assert_served(scene, fill(scene, post("Content-Length: 5", body="hello")))
    assert_served(scene, fill(scene, post("Content-Length: 0")))
    assert_served(scene, fill(scene, post("transfer-ENCODING:   Chunked  ", body="5\r\nhello\r\n0\r\n\r\n")))
    assert_served(scene, fill(scene, post(chunked, body="005;a=b\r\nhello\r\n000;c\r\n\r\n")))
    assert_served(scene, fill(scene, "\r\n" + post()))
    sent = scene.origin.everything
    assert sent.count(b"5\r\nhello\r\n0\r\n\r\n") == 2
    assert b"a=b" not in sent


@pytest.mark.threat("T-B3")
@pytest.mark.parametrize("whole", [True, False], ids=["one segment", "byte by byte"])
@pytest.mark.parametrize("body", B3_BAD_BODIES.values(), ids=B3_BAD_BODIES.keys())
def test_malformed_chunks_never_become_a_whole_request(body: str, whole: bool, start_scene: StartScene) -> None:
    """A body is passed on as it comes, so the head may be out; its end never is, nor is anything behind it."""
    scene = start_scene(handler=receive_body)
    request = fill(scene, post("Transfer-Encoding: chunked", body=body)) + second(scene)
    mark = scene.mark()
    with scene.gate.connect() as conn:
        if whole:
            conn.sendall(request)
        else:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for at in range(len(request)):
                    conn.sendall(request[at : at + 1])
            except ConnectionError:
                pass  # refused before it was all sent
        answer = read_all(conn)
        assert statuses(answer) == [400] or (answer == b"" and not whole)
    seen = scene.since(mark, decisions=1, ends=1)
    assert [record["verdict"] for record in seen.decisions] == ["allow"]
    assert seen.ends[0]["status"] == 400
    sent = scene.origin.everything
    assert b"0\r\n\r\n" not in sent, "the server got a whole request"
    assert SECOND.encode() not in sent
    assert b"GET" not in sent


@pytest.mark.threat("T-B2")
def test_trailers_cannot_say_what_belongs_into_a_head(start_scene: StartScene) -> None:
    """Framing, routing and credentials that come late are dropped; other trailers pass, which is the control."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"X-Sum: 1\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        conn.sendall(OK)

    scene = start_scene(handler=handle)
    late = "Content-Length: 9\r\nTransfer-Encoding: x\r\nHost: evil.test\r\nConnection: close\r\nAuthorization: x\r\n"
    more = "Proxy-Authorization: x\r\nTE: x\r\nUpgrade: h2c\r\nX-Sum: 1\r\n"
    request = post("Transfer-Encoding: chunked", "X-Last: 1", body=f"5\r\nhello\r\n0\r\n{late}{more}\r\n")
    assert statuses(scene.gate.send(fill(scene, request))) == [200]
    assert scene.origin.everything.partition(b"hello\r\n")[2] == b"0\r\nX-Sum: 1\r\n\r\n"


@pytest.mark.threat("T-B2")
@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a tunnel"])
def test_a_request_in_a_body_stays_a_body(inside: bool, start_scene: StartScene) -> None:
    """A body that looks like a request is sent as a body, and is judged by no one."""
    scene = start_scene(handler=receive_body)
    hidden = fill(scene, "GET http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n")
    target = b"/" if inside else b"http://good.test:%d/" % scene.port
    request = b"POST %b HTTP/1.1\r\nHost: good.test:%d\r\nContent-Length: %d\r\n\r\n" % (
        target,
        scene.port,
        len(hidden),
    )
    with scene.gate.connect() as conn:
        if inside:
            assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
        mark = scene.mark()
        conn.sendall(request + hidden)
        assert read_reply(conn).status == 200
    assert [record["host"] for record in scene.since(mark).decisions] == ["good.test"]
    assert scene.origin.everything.endswith(b"\r\n\r\n" + hidden)


@pytest.mark.threat("T-B2")
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/2 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"ICY 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_unclear_framing_of_a_response_is_refused(response: bytes, start_scene: StartScene) -> None:
    """The other way round: a server's ambiguous answer becomes 502, and its connection is not used again."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(response)
        origin.read(conn, raw)

    scene = start_scene(handler=handle)
    assert statuses(scene.gate.send(second(scene))) == [502]
    assert statuses(scene.gate.send(second(scene))) == [502]
    assert scene.origin.connections == 2


@pytest.mark.threat("T-B2")
def test_an_answer_that_nobody_asked_for_is_nobodys_answer(start_scene: StartScene) -> None:
    """Bytes behind a response are dropped with their connection, never given to the next request."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            conn.sendall(OK + forged)

    scene = start_scene(handler=handle)
    with scene.gate.connect() as conn:
        for _ in range(3):
            conn.sendall(second(scene))
            assert read_reply(conn).body == b"hello"
    assert scene.origin.connections == 3
