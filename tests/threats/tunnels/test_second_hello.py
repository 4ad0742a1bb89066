"""A server may ask for a second ClientHello, in clear text (RFC 8446 4.1.4). It must name the tunnel's host as well.

The server is a real one, OpenSSL by way of Python. A client that offers a group without a key for it is asked again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clients.hello import client_hello
from tests.support.clients.second_hello import (
    GROUPS,
    NO_KEY,
    RETRY_RANDOM,
    SIGNATURES,
    AskingServer,
    hello,
    read_server_hello,
    shake,
)
from tests.support.clients.talk import read_exactly
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import ALERT, TUNNELS, Opener
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import Scene, wait_until
from tests.support.origins.raw import RawOrigin, keep_silent

pytestmark = pytest.mark.threat("T-L4")

every_tunnel = pytest.mark.parametrize("open_tunnel", TUNNELS, ids=["connect", "socks", "redirect"])

CHANGE_CIPHER_SPEC = b"\x14\x03\x03\x00\x01\x01"
EARLY_DATA = b"\x17\x03\x03\x00\x20" + bytes(32)


@pytest.fixture
def server(tmp_path: Path) -> AskingServer:
    return AskingServer(tmp_path)


def open_direct(scene: Scene, host: bytes, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


@pytest.mark.parametrize("second", [b"evil.test", b"a.wild.test", None], ids=["denied", "allowed", "none"])
@every_tunnel
def test_a_second_hello_for_another_host_is_cut(
    open_tunnel: Opener, second: bytes | None, start_scene: StartScene, server: AskingServer
) -> None:
    """The server would have gone on with the other name: it does so directly."""
    scene = start_scene(handler=server)
    with open_direct(scene, b"", scene.port) as conn:
        assert shake(conn, b"good.test", second) not in (b"", RETRY_RANDOM)
    assert server.asked[-1] == (second.decode() if second else None)
    served = len(server.asked)
    mark = scene.mark()
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        assert shake(conn, b"good.test", second) == b""
    seen = scene.since(mark, decisions=2, ends=1)
    assert [(each["verdict"], each["reason"]) for each in seen.decisions[1:]] == [("deny", "sni-mismatch")]
    assert server.asked[served:] == ["good.test"]


@pytest.mark.parametrize("between", [b"", CHANGE_CIPHER_SPEC], ids=["plain", "compatible"])
@every_tunnel
def test_a_second_hello_for_the_same_host_passes(
    open_tunnel: Opener, between: bytes, start_scene: StartScene, server: AskingServer
) -> None:
    """The control, as clients send it: with and without the record that pleases middleboxes."""
    scene = start_scene(handler=server)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        assert shake(conn, b"good.test", b"good.test", between) not in (b"", RETRY_RANDOM)
    assert set(server.asked) == {"good.test"}


@every_tunnel
def test_a_second_hello_that_comes_before_it_is_asked_for(
    open_tunnel: Opener, start_scene: StartScene, server: AskingServer
) -> None:
    """Both hellos in one write: nothing behind the first goes out before the server has answered that."""
    scene = start_scene(handler=server)
    with open_direct(scene, b"", scene.port) as conn:
        conn.sendall(hello(b"good.test", key=False) + hello(b"evil.test", key=True))
        assert read_server_hello(conn) == RETRY_RANDOM
        assert read_server_hello(conn) not in (b"", RETRY_RANDOM), "the control: the server takes it"
    served = len(server.asked)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(hello(b"good.test", key=False) + CHANGE_CIPHER_SPEC + hello(b"evil.test", key=True))
        assert read_server_hello(conn) == RETRY_RANDOM
        assert read_server_hello(conn) == b""
    assert server.asked[served:] == ["good.test"]


@every_tunnel
def test_a_broken_second_hello_is_cut(open_tunnel: Opener, start_scene: StartScene, server: AskingServer) -> None:
    scene = start_scene(handler=server)
    for broken in (b"\x16\x03\x03\x00\x04\x02\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\x17\x03\x03\xff\xff" + bytes(100)):
        mark = scene.mark()
        before = scene.origin.received
        with open_tunnel(scene, b"good.test", scene.port) as conn:
            first = hello(b"good.test", key=False)
            conn.sendall(first)
            assert read_server_hello(conn) == RETRY_RANDOM
            conn.sendall(broken)
            assert read_server_hello(conn) == b""
        seen = scene.since(mark, decisions=2, ends=1)
        assert seen.decisions[1]["reason"] == "malformed"
        assert scene.origin.received - before == len(first)


@every_tunnel
def test_early_data_waits_for_the_server(open_tunnel: Opener, start_scene: StartScene, server: AskingServer) -> None:
    """A client that sends data along with its hello (0-RTT) gets all of it through, as soon as the server has spoken.

    This server throws it away, as one must that asks for a second hello; had it been lost, or had it come in pieces,
    the handshake would fail.
    """
    scene = start_scene(handler=server)
    early = EARLY_DATA * 3
    first = client_hello(b"good.test", more=[GROUPS, SIGNATURES, NO_KEY, (42, b"")])
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(first + early)
        assert read_server_hello(conn) == RETRY_RANDOM
        wait_until(lambda: len(scene.origin.everything) >= len(first + early), "the early data")
    assert scene.origin.everything == first + early


def _say(words: bytes) -> Callable[[socket.socket, RawOrigin, bytearray], None]:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(words)
        keep_silent(conn, origin, raw)

    return handle


SERVER_HELLO_12 = b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03" + b"r" * 32 + bytes(4)
OTHERS = {
    "TLS 1.2": SERVER_HELLO_12,
    "a warning and then TLS 1.2": b"\x15\x03\x03\x00\x02\x01\x70" + SERVER_HELLO_12,
    "a fatal alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "plain text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another handshake message": b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
}


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS.keys())
@every_tunnel
def test_any_other_answer_opens_the_tunnel(open_tunnel: Opener, words: bytes, start_scene: StartScene) -> None:
    scene = start_scene(handler=_say(words))
    first = hello(b"good.test", key=True)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(first)
        assert read_exactly(conn, len(words)) == words
        conn.sendall(b"whatever follows")
        wait_until(lambda: scene.origin.everything == first + b"whatever follows", "what follows")


@every_tunnel
def test_nothing_follows_the_hello_before_the_server_answers(open_tunnel: Opener, start_scene: StartScene) -> None:
    """Held back without a limit on memory it would be a flood; so the client is read no further."""
    leave = threading.Event()

    def read_hello(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        leave.wait(30)
        conn.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            origin.read(conn, raw)

    scene = start_scene(handler=read_hello)
    first = hello(b"good.test", key=True)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(first)
        conn.settimeout(0.5)
        sent = 0
        try:
            while sent < 64_000_000:
                sent += conn.send(EARLY_DATA * 1000)
        except TimeoutError:
            pass
        assert sent < 64_000_000
        leave.set()
        assert scene.origin.closed.acquire(timeout=30)
        assert scene.origin.everything == first


@every_tunnel
def test_a_client_that_ends_after_its_hello_is_told_on(open_tunnel: Opener, start_scene: StartScene) -> None:
    """Nothing more can come from it, so there is nothing to wait for."""
    scene = start_scene(handler=keep_silent)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(hello(b"good.test", key=True))
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) in (b"", ALERT)  # the server has read to the end, and left


SERVER_HELLO = b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03" + b"r" * 32 + bytes(4)


@every_tunnel
def test_a_client_that_ends_behind_early_data_stops_no_others(open_tunnel: Opener, start_scene: StartScene) -> None:
    """It has sent more than its hello, and its end: nothing more comes from it, and the server has not spoken yet."""
    speak = threading.Event()

    def answer_late(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        speak.wait(30)
        conn.sendall(SERVER_HELLO)
        keep_silent(conn, origin, raw)

    scene = start_scene(handler=answer_late)
    first = client_hello(b"good.test")
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(first + EARLY_DATA)
        conn.shutdown(socket.SHUT_WR)
        with scene.gate.connect(timeout_s=10) as other:
            other.sendall(b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n")
            assert read_exactly(other, 12) == b"HTTP/1.1 403"
        speak.set()
        assert read_exactly(conn, len(SERVER_HELLO)) == SERVER_HELLO
        assert read_all(conn) == b""
    assert scene.origin.everything == first + EARLY_DATA
