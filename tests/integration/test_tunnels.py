"""Tunnels, by CONNECT and by SOCKS5: every byte arrives, in order, in both directions, and is counted."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from tests.integration.tunnels import (
    HOSTS,
    MB,
    PATTERN,
    both_doors,
    digest,
    drink,
    ends,
    open_tunnel,
    pour,
    send_and_end,
)
from tests.support.clients.answers import read_to_end
from tests.support.clients.talk import read_exactly
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_all
from tests.support.origins.plain import Origin, echo

pytestmark = pytest.mark.usefixtures("quick_sweep")


@both_doors
def test_both_directions_end_by_themselves(through: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Half-close: the server sees the client's end, and answers after it; the counters are exact."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        total, _ = drink(conn)
        conn.sendall(b"you sent %d" % total)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        open_tunnel(through, conn, origin.port)
        pour(conn, 100_000)
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == b"you sent 100000"
    (end,) = ends(gate, 1)
    assert (end["sent"], end["received"], end["note"]) == (100_000, 15, "")


@both_doors
def test_the_server_may_end_first(through: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Half-close the other way: the client sees the server's end and goes on sending."""
    got: list[tuple[int, str]] = []
    done = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.sendall(b"bye")
        conn.shutdown(socket.SHUT_WR)
        got.append(drink(conn))
        done.set()

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        open_tunnel(through, conn, origin.port)
        assert read_all(conn) == b"bye"
        pour(conn, 3 * MB)
        conn.shutdown(socket.SHUT_WR)
        assert done.wait(60)
    assert got == [(3 * MB, digest(3 * MB))]


@both_doors
def test_the_server_may_speak_first_on_an_explicit_port(
    through: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """SSH, SMTP and many others begin that way; what the client then says goes through as it is."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.sendall(b"220 mail.test ready\r\n")
        echo(conn, origin)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        open_tunnel(through, conn, origin.port)
        assert read_exactly(conn, 21) == b"220 mail.test ready\r\n"
        conn.sendall(b"EHLO here\r\n")
        assert read_exactly(conn, 11) == b"EHLO here\r\n"


def test_bytes_sent_along_with_connect_are_not_lost(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A client that does not wait for the 200 gets everything through all the same."""
    origin = start_origin(echo)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        head = b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port
        conn.sendall(head + PATTERN[:200_000])
        conn.shutdown(socket.SHUT_WR)
        _, _, body = read_all(conn).partition(b"\r\n\r\n")
    assert body == PATTERN[:200_000]


@both_doors
def test_many_tunnels_at_once_do_not_mix(through: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Forty tunnels of random sizes, up to 3 MB and some of them empty: each gets its own bytes back."""
    origin = start_origin(echo)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    chance = random.Random(2)
    sizes = [0, 1, 65_535, 65_536, 65_537, 1_048_576, 1_048_577, *(chance.randrange(1, 3 * MB) for _ in range(33))]
    wrong: list[int] = []

    def run(size: int) -> None:
        data = bytes([size % 251 | 128]) + chance.randbytes(size - 1) if size else b""
        with gate.connect(30) as conn:
            open_tunnel(through, conn, origin.port)
            sender = threading.Thread(target=send_and_end, args=(conn, [data]))
            sender.start()
            received, proper_end = read_to_end(conn)
            sender.join()
        if received != data or not proper_end:
            wrong.append(size)

    threads = [threading.Thread(target=run, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    counted = sorted((end["sent"], end["received"]) for end in ends(gate, len(sizes)))
    assert counted == sorted((size, size) for size in sizes)
