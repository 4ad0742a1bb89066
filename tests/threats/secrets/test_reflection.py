"""Ways to get a value back from a server that means no harm, or little: every one must end in the placeholder."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from exeat.errors import ConfigError
from tests.support.clients.talk import read_reply
from tests.support.clients.websocket import SWITCHED, UPGRADE
from tests.support.gateways.intercepted import REAL, WITH_KEY, StartIntercepted, for_good, longest_part
from tests.support.origins.raw import RawHandler, RawOrigin, read_head, receive_all

pytestmark = pytest.mark.threat("T-H1")

# WebSocket


@pytest.mark.parametrize("at", [4, len(REAL) // 2, len(REAL) - 1])
def test_a_websocket_frame_in_two_packets_gives_no_part_of_a_value(
    at: int, start_intercepted: StartIntercepted
) -> None:
    """A frame of more than a TLS record, or of more than one read, comes in pieces. What is before the cut must wait.

    Whoever chooses what stands before the value chooses where it is cut: two connections give all of it.
    """
    go_on = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        text = b"got: ".ljust(1_000, b".") + REAL
        frame = b"\x81\x7e%b%b" % (len(text).to_bytes(2, "big"), text)
        cut = frame.index(REAL) + at
        conn.sendall(SWITCHED)
        conn.sendall(frame[:cut])
        go_on.wait(5)
        conn.sendall(frame[cut:])

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.sendall(UPGRADE % scene.placeholder())
        received = bytearray()
        conn.settimeout(2)
        while b"got: " not in received:
            received += conn.recv(65536)
        go_on.set()
        received += receive_all(conn)
    assert b"101 Switching" in received  # it was spoken to
    assert longest_part(bytes(received)) < 4


def test_a_value_that_straddles_two_records_of_one_frame(start_intercepted: StartIntercepted) -> None:
    """The same with a server that writes its frame at once: TLS cuts it, at a place that the program has chosen."""
    record = 16384
    where = [1]

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        conn.sendall(SWITCHED)
        origin.read(conn, raw)
        body = b"x" * (where[0] * record - 10 - len(REAL) + 1) + REAL + b"y" * (20 * record)
        conn.sendall(b"\x81\x7f%b" % len(body).to_bytes(8, "big") + body)
        receive_all(conn)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    best = 0
    for boundary in (1, 2, 6, 1, 2, 6):  # which records are read together is a matter of chance
        where[0] = boundary
        with scene.open() as conn:
            conn.sendall(UPGRADE % scene.placeholder())
            received = bytearray()
            while b"\r\n\r\n" not in received:
                received += conn.recv(65536)
            conn.sendall(b"go")
            received += receive_all(conn)
        assert REAL not in received
        best = max(best, longest_part(bytes(received)))
    assert best < 4


def test_a_websocket_is_watched_for_values_that_were_renewed(start_intercepted: StartIntercepted) -> None:
    """What is looked for is what is given out by now, not what was when the connection was opened."""
    renewed = b"another-value-0123456789"
    speak = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        head = read_head(conn, origin, raw)
        if b"/chat" in head:
            conn.sendall(SWITCHED)
            speak.wait(5)
            conn.sendall(b"\x81%c%b" % (len(renewed), renewed))
        else:
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(renewed), renewed))
        receive_all(conn)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as chat, scene.open() as other:
        chat.sendall(UPGRADE % scene.placeholder())
        begun = chat.recv(65536)
        scene.gate.call(_turns())
        scene.secrets[0].renew(renewed)
        other.sendall(WITH_KEY % scene.placeholder())
        assert renewed not in read_reply(other).body  # in an ordinary answer it is found
        speak.set()
        received = begun + receive_all(chat)
    assert renewed not in received


# Answers that began before anything was given out


def two_requests(answer: bytes, first: bytes) -> RawHandler:
    """To /wait: the head of an answer at once, its body when another request has brought the value."""
    given = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := read_head(conn, origin, raw):
            if b"/wait" in head:
                conn.sendall(first)
                given.wait(5)
                conn.sendall(answer)
            else:
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                given.set()

    return handle


@pytest.mark.parametrize(
    "framing", [b"Content-Length: %d" % len(REAL), b"Connection: close"], ids=["counted", "until the end"]
)
def test_an_answer_that_began_before_the_value_was_given_out(
    framing: bytes, start_intercepted: StartIntercepted
) -> None:
    """A program asks for something that takes its time, then sends its placeholder elsewhere on the same host."""
    handle = two_requests(REAL, b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as slow, scene.open() as other:
        slow.sendall(b"GET /wait HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
        slow.settimeout(2)
        received = bytearray(slow.recv(65536) if framing.startswith(b"Conn") else b"")
        while scene.origin.connections < 1:
            time.sleep(0.01)
        scene.gate.call(_turns())
        other.sendall(WITH_KEY % scene.placeholder())
        assert read_reply(other).status == 200
        received += receive_all(slow)
    assert received.startswith(b"HTTP/1.1 200")
    assert REAL not in received


async def _turns() -> None:
    await asyncio.sleep(0.2)


def test_a_counted_answer_that_began_before_the_trailers_came(start_intercepted: StartIntercepted) -> None:
    """A value in a trailer is given out after the answer may have begun."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(90_000))
        while REAL not in raw:
            if not origin.read(conn, raw):
                return
        conn.sendall(REAL.ljust(10_000))

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        received = bytearray()
        conn.settimeout(2)
        while len(received) < 80_000:  # the last bytes that came may be held back
            received += conn.recv(65536)
        conn.sendall(b"0\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
        received += receive_all(conn)
    assert REAL in bytes(scene.origin.raw[0])
    assert REAL not in received


# What a server reads of a value


@pytest.mark.parametrize("value", ["value-0123456789 ", "  value-0123456789"])
def test_white_space_around_a_value_does_not_hide_it(value: str, start_intercepted: StartIntercepted) -> None:
    """Servers take white space around a field's value away, and repeat what is left."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := read_head(conn, origin, raw):
            body = head.lower().partition(b"x-key:")[2].partition(b"\r\n")[0].strip()
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    try:
        scene = start_intercepted(secrets=for_good(value=value), handler=handle)
    except ConfigError:
        return  # refused when it is read: as good
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        reply = read_reply(conn)
    assert reply.status == 200
    assert b"value-0123456789" not in reply.body


def test_the_same_host_over_plain_http_repeats_nothing(start_intercepted: StartIntercepted) -> None:
    """What was given to a host over TLS can be asked for without: it is the same host, and it has the secret."""
    scene = start_intercepted(
        ["good.test private"],
        secrets=for_good(),
        plain_handler=lambda conn, origin, raw: (
            read_head(conn, origin, raw),
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(REAL), REAL)),
        )[0],
    )
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        assert read_reply(conn).status == 200
    with scene.gate.connect() as plain:
        plain.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        reply = read_reply(plain)
    assert reply.status == 200
    assert REAL not in reply.body
