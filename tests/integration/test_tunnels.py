"""Tunnels, by CONNECT and by SOCKS5: every byte arrives, in order, in both directions, and is counted."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from exeat.gateway.flow.splice import Splice
from exeat.gateway.limits import Limits
from tests.support.clients.answers import read_to_end, reset
from tests.support.clients.talk import connect_dial, read_exactly, socks_dial
from tests.support.fixtures.gateways import StartGate, StartOrigin, StartServing
from tests.support.gateways.gate import Gate, read_all
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS as SERVE_HOSTS
from tests.support.origins.plain import Origin, echo

pytestmark = pytest.mark.usefixtures("quick_sweep")

HOSTS = {"good.test": "127.0.0.1"}
MB = 1_000_000
# A prime number of bytes: a block that is lost, doubled or moved cannot fall on its own period.
PATTERN = random.Random(1).randbytes(1_000_003)


def blocks(size: int) -> Iterator[bytes]:
    """`size` bytes, none of them an HTTP request or a TLS hello at the beginning."""
    while size > 0:
        yield PATTERN[:size]
        size -= len(PATTERN)


def digest(size: int) -> str:
    found = hashlib.sha256()
    for block in blocks(size):
        found.update(block)
    return found.hexdigest()


def pour(conn: socket.socket, size: int) -> None:
    for block in blocks(size):
        conn.sendall(block)


def send_and_end(conn: socket.socket, parts: Iterable[bytes]) -> None:
    for part in parts:
        conn.sendall(part)
    conn.shutdown(socket.SHUT_WR)


def drink(conn: socket.socket, *, pause_every: int = 0) -> tuple[int, str]:
    """Read to the end: how much, and its hash. `pause_every`: a reader that stops for a moment that often."""
    buffer, found, total, rested = bytearray(262_144), hashlib.sha256(), 0, 0
    while size := conn.recv_into(buffer):
        found.update(memoryview(buffer)[:size])
        total += size
        if pause_every and total - rested > pause_every:
            rested = total
            time.sleep(0.02)
    return total, found.hexdigest()


def open_tunnel(through: str, conn: socket.socket, port: int) -> None:
    if through == "connect":
        assert connect_dial(conn, b"good.test:%d" % port).status == 200
    else:
        assert socks_dial(conn, b"good.test", port) == 0


def ends(gate: Gate, count: int) -> list[dict[str, Any]]:
    """The end lines, once there are that many."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        found[:] = [line for line in gate.lines() if line["event"] == "end"]
        return len(found) >= count

    wait_until(enough, f"{count} end lines")
    return found


both_doors = pytest.mark.parametrize("through", ["connect", "socks"])


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


# Long transfers: after its first megabyte a direction is moved by the kernel

BIG = 200 * MB


@pytest.fixture
def splices(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every direction that was handed over to the kernel."""
    made: list[object] = []

    def make(*args: Any) -> Splice:
        made.append(args)
        return Splice(*args)

    monkeypatch.setattr("exeat.gateway.flow.relay.Splice", make)
    return made


def test_long_transfers_are_moved_by_the_kernel(
    start_gate: StartGate, start_origin: StartOrigin, splices: list[object]
) -> None:
    """The tests below are about that path, so see that it is taken: once for each direction."""
    origin = start_origin(echo)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    size = 20 * MB
    with gate.connect(30) as conn:
        open_tunnel("connect", conn, origin.port)
        sender = threading.Thread(target=send_and_end, args=(conn, blocks(size)))
        sender.start()
        assert drink(conn) == (size, digest(size))
        sender.join()
    assert len(splices) == 2
    (end,) = ends(gate, 1)
    assert (end["sent"], end["received"]) == (size, size)


@both_doors
def test_200_mb_arrive_unchanged_each_way(through: str, serve: StartServing, start_origin: StartOrigin) -> None:
    """Down through one tunnel and up through another: the hashes agree, and the end lines count every byte."""
    uploaded: list[tuple[int, str]] = []
    done = threading.Event()

    def download(conn: socket.socket, origin: Origin) -> None:
        pour(conn, BIG)

    def upload(conn: socket.socket, origin: Origin) -> None:
        uploaded.append(drink(conn))
        conn.sendall(b"done")
        done.set()

    down, up = start_origin(download), start_origin(upload)
    serving = serve("--allow", f"good.test:{down.port}", "--allow", f"good.test:{up.port}", *SERVE_HOSTS)
    with serving.connect(30) as conn:
        open_tunnel(through, conn, down.port)
        assert drink(conn) == (BIG, digest(BIG))
    with serving.connect(30) as conn:
        open_tunnel(through, conn, up.port)
        pour(conn, BIG)
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == b"done"
    assert done.wait(60)
    assert uploaded == [(BIG, digest(BIG))]
    wait_until(lambda: len(serving.lines("end")) == 2, "the end lines")
    assert [(end["sent"], end["received"]) for end in serving.lines("end")] == [(0, BIG), (BIG, 4)]


def test_a_slow_reader_of_a_long_transfer_loses_nothing(serve: StartServing, start_origin: StartOrigin) -> None:
    """A reader that stops again and again, on either side, gets every byte, and the gateway keeps none of them."""
    size = 40 * MB
    uploaded: list[tuple[int, str]] = []
    done = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        pour(conn, size)
        conn.shutdown(socket.SHUT_WR)
        uploaded.append(drink(conn, pause_every=2 * MB))
        done.set()

    origin = start_origin(handle)
    serving = serve("--allow", f"good.test:{origin.port}", *SERVE_HOSTS)
    before = serving.resident_kb
    with serving.connect(30) as conn:
        open_tunnel("connect", conn, origin.port)
        assert drink(conn, pause_every=2 * MB) == (size, digest(size))
        pour(conn, size)
        conn.shutdown(socket.SHUT_WR)
        assert done.wait(30)
    assert uploaded == [(size, digest(size))]
    assert serving.resident_kb - before < 32 * 1024


@pytest.mark.parametrize("who", ["client", "server"])
@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_long_transfer_that_is_broken_off_leaves_nothing_behind(
    direction: str, how: str, who: str, serve: StartServing, start_origin: StartOrigin
) -> None:
    """Whoever leaves in the middle: the other side learns of it and every descriptor is given back."""
    seen = threading.Event()

    def endless(conn: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                conn.sendall(PATTERN)

    def leave(conn: socket.socket) -> None:
        read_exactly(conn, 5 * MB)
        if how == "resets":
            reset(conn)
        else:
            conn.close()

    def give(conn: socket.socket) -> None:
        conn.sendall(PATTERN * 5)
        if how == "resets":
            reset(conn)
        else:
            conn.close()

    def handle(conn: socket.socket, origin: Origin) -> None:
        if who == "client":
            if direction == "down":
                endless(conn)
            else:
                with contextlib.suppress(OSError):
                    drink(conn)
            seen.set()
        elif direction == "down":
            give(conn)
        else:
            leave(conn)

    origin = start_origin(handle)
    serving = serve("--allow", f"good.test:{origin.port}", *SERVE_HOSTS)
    baseline = serving.settled_descriptors()
    with serving.connect(30) as conn:
        open_tunnel("connect", conn, origin.port)
        if who == "server":
            if direction == "down":
                read_to_end(conn)
            else:
                endless(conn)
        elif direction == "down":
            leave(conn)
        else:
            give(conn)
        if who == "client":
            assert seen.wait(15)
    wait_until(lambda: serving.descriptors <= baseline, f"{baseline} descriptors, there are {serving.descriptors}")
    wait_until(lambda: len(serving.lines("end")) == 1, "the end line")


# Time


def test_a_silent_tunnel_is_closed_and_a_busy_one_is_not(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """`idle_s`: both have been open for longer than it; only the one in which nothing moves ends."""
    origin = start_origin(echo)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(idle_s=2))
    with gate.connect() as silent, gate.connect() as busy:
        for conn in (silent, busy):
            open_tunnel("connect", conn, origin.port)
            conn.sendall(b"\x80")
            assert read_exactly(conn, 1) == b"\x80"
        for _ in range(25):
            busy.sendall(b"x")
            assert read_exactly(busy, 1) == b"x"
            time.sleep(0.1)
        assert read_all(silent) == b""
        busy.sendall(b"y")
        assert read_exactly(busy, 1) == b"y"
    notes = sorted(end["note"] for end in ends(gate, 2))
    assert notes == ["", "idle"]


def test_a_tunnel_in_which_only_the_server_speaks_is_not_silent(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """A client that listens to a stream and never says a word keeps it for as long as something comes."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        for _ in range(30):
            conn.sendall(b"x")
            time.sleep(0.08)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(idle_s=2))
    with gate.connect() as conn:
        open_tunnel("connect", conn, origin.port)
        assert read_all(conn) == b"x" * 30


def test_a_long_transfer_is_not_silent(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Bytes that the kernel moves count as traffic too."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.recv(1)  # or its close would be a reset, which is passed on
        pour(conn, 3 * MB)
        for _ in range(20):
            time.sleep(0.12)
            conn.sendall(b"x" * 1_000)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(idle_s=2))
    with gate.connect() as conn:
        open_tunnel("socks", conn, origin.port)
        conn.sendall(b"\x80")
        assert drink(conn)[0] == 3 * MB + 20_000
