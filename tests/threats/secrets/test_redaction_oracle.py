"""A program that has content of its own choosing sent back by a host with a secret, and looks at sizes.

Whatever it guesses, the answer comes in the same pieces, unless it has guessed the whole value.
"""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hyperframe.frame import DataFrame

from tests.support.clients.http2 import Http2Client
from tests.support.clients.websocket import UPGRADE, frame, speaking
from tests.support.gateways.intercepted import (
    REAL,
    WITH_KEY,
    Intercepted,
    StartIntercepted,
    for_good,
    read_rest,
    read_until,
)
from tests.support.origins.raw import RawOrigin, read_head
from tests.support.origins.tls import say_goodbye

pytestmark = pytest.mark.threat("T-L1")

PIECE = 256 << 10  # what is unpacked at a time
GUESSED = 3
Ask = Callable[[Intercepted], list[int]]


class Gist:
    """A server that packs whatever it was given, and sends it to who asks. Each connection has one answer."""

    def __init__(self) -> None:
        self.content = b""

    def __call__(self, conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        packed = gzip.compress(self.content, 1)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        conn.sendall(head % len(packed) + packed)
        say_goodbye(conn)


def around(guess: bytes) -> bytes:
    """The guess stands where the first piece ends."""
    return b"." * (PIECE - len(guess)) + guess + b"." * PIECE


def chunks_over_http1(scene: Intercepted) -> list[int]:
    with scene.open() as conn:
        conn.settimeout(20)
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX: %b\r\n\r\n" % scene.placeholder())
        data = read_rest(conn).partition(b"\r\n\r\n")[2]
    sizes = []
    while data:
        line, _, data = data.partition(b"\r\n")
        sizes.append(int(line, 16))
        data = data[sizes[-1] + 2 :]
    return sizes


def frames_over_http2(scene: Intercepted) -> list[int]:
    """As many DATA frames as there are, each with its size."""
    with scene.open(alpn=("h2",)) as conn:
        conn.settimeout(20)
        client = Http2Client(conn)
        sizes: list[int] = []
        client.h2.update_settings({4: 8 * PIECE})
        client.h2.increment_flow_control_window(8 * PIECE)
        client.flush()

        def note(taken: DataFrame) -> Any:
            sizes.append(len(taken.data))
            return receive(taken)

        receive = client.h2._frame_dispatch_table[DataFrame]
        client.h2._frame_dispatch_table[DataFrame] = note
        answer = client.ask(fields=[(b"x", scene.placeholder())])
    assert answer.ended
    return sizes


def recover(scene: Intercepted, gist: Gist, ask: Ask) -> bytes:
    """The attack: of some characters, the one for which the answer looks different is the next of the value."""
    known = b""
    while len(known) < GUESSED:
        right = REAL[len(known) : len(known) + 1]
        seen = {}
        for letter in (b"~", b"^", right, b"!"):
            gist.content = around(known + letter)
            seen[letter] = tuple(ask(scene))
        shapes = list(seen.values())
        different = [letter for letter, shape in seen.items() if shapes.count(shape) == 1]
        if len(different) != 1:
            break
        known += different[0]
    return known


@pytest.mark.parametrize("ask", [chunks_over_http1, frames_over_http2])
def test_no_character_of_a_value_can_be_found_by_sizes(ask: Ask, start_intercepted: StartIntercepted) -> None:
    gist = Gist()
    scene = start_intercepted(secrets=for_good(), handler=gist)
    assert recover(scene, gist, ask) == b""
    gist.content = around(REAL)
    assert sum(ask(scene)) != 2 * PIECE, "the control: a whole value is replaced by what has another length"


GUESSES = pytest.mark.parametrize("guess", [b"", REAL[:1], REAL[:10], REAL[:-1]])


@GUESSES
def test_a_line_arrives_whatever_is_in_it(guess: bytes, start_intercepted: StartIntercepted) -> None:
    """A stream of lines flows, and what comes behind the last of them waits, whatever it is."""
    is_read = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\nfirst: %b\n%b" % (guess, guess))
        is_read.wait(20)
        conn.sendall(b".\n")
        say_goodbye(conn)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.settimeout(20)
        conn.sendall(WITH_KEY % scene.placeholder())
        received = read_until(conn, b"first: %b\n\r\n" % guess)
        assert received.endswith(b"first: %b\n\r\n" % guess), "a chunk that ends with the line"
        is_read.set()
        assert b"\r\n%b.\n\r\n" % guess in read_until(conn, b"0\r\n\r\n")


@GUESSES
def test_a_frame_arrives_whatever_is_in_it(guess: bytes, start_intercepted: StartIntercepted) -> None:
    whole = frame(b"." * 3_000 + guess)
    scene = start_intercepted(secrets=for_good(), handler=speaking(whole[:-1], whole[-1:]))
    with scene.open() as conn:
        conn.settimeout(20)
        conn.sendall(UPGRADE % scene.placeholder())
        received = read_until(conn, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
        while len(received) < len(whole):
            received += conn.recv(65536)
    assert received == whole
