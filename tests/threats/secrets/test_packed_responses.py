"""A server that repeats a value and something of the program's choosing, and packs both together (BREACH).

How long the packed body is says how far the two are alike. The value is taken out of what the program gets, and the
length of the packed body must not be told either: the server is asked not to pack at all, and where one does so all
the same, neither the framing nor a head without a body says how long it was.
"""

from __future__ import annotations

import base64
import gzip
import random
import socket
from bisect import bisect

import pytest

from tests.support.gateways.intercepted import REAL, Intercepted, StartIntercepted, for_good, read_rest
from tests.support.origins.raw import RawOrigin, read_head
from tests.support.origins.tls import say_goodbye

pytestmark = pytest.mark.threat("T-H7")

KEPT = 64 << 10  # a body of up to so many bytes keeps a length
RIGHT = REAL[:-2]
WRONG = bytes(reversed(RIGHT))  # the same letters


def packed(text: bytes) -> bytes:
    return gzip.compress(b"key: " + REAL + b"\n" + text, 9, mtime=0)


class Echo:
    """Repeats what it was sent. `always`: it packs even if it was asked not to."""

    def __init__(self, *, always: bool) -> None:
        self.text = b""
        self._always = always
        self.packed: list[int] = []

    def __call__(self, conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        head = read_head(conn, origin, raw)
        body, coding = b"key: " + REAL + b"\n" + self.text, b""
        if self._always or b"gzip" in head:
            body, coding = packed(self.text), b"Content-Encoding: gzip\r\n"
            self.packed.append(len(body))
        first = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n" % (len(body), coding)
        conn.sendall(first if head.startswith(b"HEAD") else first + body)
        say_goodbye(conn)


def answer(scene: Intercepted, method: bytes = b"GET") -> tuple[bytes, bytes]:
    request = b"%b / HTTP/1.1\r\nHost: good.test\r\nAccept-Encoding: gzip\r\nConnection: close\r\nX: %b\r\n\r\n"
    with scene.open() as conn:
        conn.settimeout(20)
        conn.sendall(request % (method, scene.placeholder()))
        head, _, rest = read_rest(conn).partition(b"\r\n\r\n")
    return head, rest


def filler_for_the_border() -> bytes:
    """What makes the packed body a little over 64 KiB with a wrong guess, and not with a right one."""
    noise = base64.b64encode(random.Random(1).randbytes(KEPT))
    size = bisect(range(len(noise)), KEPT, key=lambda size: len(packed(WRONG + noise[:size])))
    return noise[:size]


def test_the_control_a_packed_body_tells_how_far_a_guess_is_right() -> None:
    assert len(RIGHT) == len(WRONG)
    assert len(packed(RIGHT)) < len(packed(WRONG))


def test_a_server_that_may_repeat_a_value_is_asked_not_to_pack(start_intercepted: StartIntercepted) -> None:
    echo = Echo(always=False)
    scene = start_intercepted(secrets=for_good(), handler=echo)
    echo.text = RIGHT
    head, body = answer(scene)
    assert b"200 OK" in head
    assert body == b"key: " + scene.placeholder() + b"\n" + RIGHT
    assert echo.packed == []


def test_the_length_of_a_packed_body_does_not_decide_how_it_is_framed(start_intercepted: StartIntercepted) -> None:
    echo = Echo(always=True)
    scene = start_intercepted(secrets=for_good(), handler=echo)
    filler = filler_for_the_border()
    framed = []
    for guess in (RIGHT, WRONG):
        echo.text = guess + filler
        head, _ = answer(scene)
        framed.append(b"\r\nContent-Length:" in head)
    assert echo.packed[0] <= KEPT < echo.packed[1], "the control: the server's answers are on both sides of the border"
    assert framed[0] == framed[1]


def test_a_head_does_not_tell_the_length_of_a_packed_body(start_intercepted: StartIntercepted) -> None:
    echo = Echo(always=True)
    scene = start_intercepted(secrets=for_good(), handler=echo)
    heads = []
    for guess in (RIGHT, WRONG):
        echo.text = guess
        heads.append(answer(scene, b"HEAD")[0])
    assert echo.packed[0] < echo.packed[1], "the control"
    assert heads[0] == heads[1]
    assert heads[0].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("status", [b"200 OK", b"304 Not Modified"])
def test_an_unpacked_length_stays(status: bytes, start_intercepted: StartIntercepted) -> None:
    """The length of an empty body, and that of a body that a HEAD asks for, unless it is packed."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        is_head = read_head(conn, origin, raw).startswith(b"HEAD")
        lines = b"Content-Length: 7\r\n" if is_head else b"Content-Encoding: gzip\r\nContent-Length: 0\r\n"
        conn.sendall(b"HTTP/1.1 %b\r\n%bConnection: close\r\n\r\n" % (status, lines))
        say_goodbye(conn)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    assert b"\r\nContent-Length: 7" in answer(scene, b"HEAD")[0]
    assert b"\r\nContent-Length: 0" in answer(scene)[0]
