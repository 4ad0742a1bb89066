"""Long transfers through tunnels, and the time that silence may take."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from exeat.gateway.flow.splice import Splice
from exeat.gateway.limits import Limits
from tests.integration.tunnels import (
    HOSTS,
    MB,
    PATTERN,
    blocks,
    both_doors,
    digest,
    drink,
    ends,
    open_tunnel,
    pour,
    send_and_end,
)
from tests.support.clients.answers import read_to_end, reset
from tests.support.clients.talk import read_exactly
from tests.support.fixtures.gateways import StartGate, StartOrigin, StartServing
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS as SERVE_HOSTS
from tests.support.origins.plain import Origin, echo

pytestmark = pytest.mark.usefixtures("quick_sweep")


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


@pytest.mark.threat("T-L3")
@pytest.mark.parametrize("rest", [0, 1, 100_000])
def test_urgent_data_does_not_stop_a_long_transfer(
    rest: int, start_gate: StartGate, start_origin: StartOrigin, splices: list[object]
) -> None:
    """The kernel splices nothing from there on. What came behind was lost, in what looked like an orderly end; or the
    transfer stood still while the loop ran for nothing, up to the limit of silence."""
    got: list[tuple[int, str]] = []

    def handle(conn: socket.socket, origin: Origin) -> None:
        got.append(drink(conn))
        conn.sendall(b"done")

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        open_tunnel("connect", conn, origin.port)
        pour(conn, 5 * MB)
        wait_until(lambda: bool(splices), "the kernel to move it")
        conn.send(b"!", socket.MSG_OOB)
        pour(conn, rest)
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == b"done"
    assert got[0][0] == 5 * MB + rest  # urgent data is for no one: sockets leave it out of the stream
    (end,) = ends(gate, 1)
    assert (end["sent"], end["note"]) == (5 * MB + rest, "")


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
