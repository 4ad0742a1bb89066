"""While a tunnel waits for its server's hello, nothing that its client does may stop all others."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.doors import TUNNELS, Opener, read_exactly
from tests.support.gate import read_all
from tests.support.hello import client_hello
from tests.support.raw_origin import RawOrigin, keep_silent
from tests.threats.conftest import StartScene

every_tunnel = pytest.mark.parametrize("open_tunnel", TUNNELS, ids=["connect", "socks", "redirect"])

SERVER_HELLO = b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03" + b"r" * 32 + bytes(4)
EARLY_DATA = b"\x17\x03\x03\x00\x20" + bytes(32)


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
