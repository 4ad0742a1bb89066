"""One client, or one server behind an allowed name, against everybody else: memory, descriptors, time."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.dial import dial
from exeat.gateway.gates.resolve import IPAddress, ResolveError, Resolver
from exeat.gateway.gates.session import _check_partial_head
from exeat.gateway.limits import Limits
from tests.support.clients.pressure import (
    HOSTS,
    answer_size_in_path,
    ask,
    connect_small,
    flood,
    leave_unread,
    most_between_turns,
    unsent,
    upstreams_of,
)
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import OK, Origin

MB = 1024 * 1024
DENIED = b"GET http://a/ HTTP/1.1\r\nHost:a\r\n\r\n"
SHORT = Limits(keep_alive_s=0.3, head_s=0.3, first_byte_s=0.3, idle_s=0.5, response_s=0.5, upstream_idle_s=0.3)


# Memory


@pytest.mark.threat("T-I1")
def test_an_answer_behind_unread_ones_is_not_taken_into_memory(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """A client whose buffer is full when an exchange begins is never told to pause: 100 MB end up in memory."""
    origin = start_origin(answer_size_in_path)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with connect_small(gate) as conn:
        leave_unread(gate, origin, conn, 256 * 1024)
        conn.sendall(ask(origin, "/100000000"))
        gate.call(asyncio.sleep(0.6))
        assert unsent(gate) < 4 * MB


@pytest.mark.threat("T-I1")
def test_control_one_large_answer_that_nobody_reads_is_paused(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The same answer as the first on its connection costs well under a megabyte."""
    origin = start_origin(answer_size_in_path)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with connect_small(gate) as conn:
        conn.sendall(ask(origin, "/100000000"))
        gate.call(asyncio.sleep(0.4))
        assert unsent(gate) < MB


@pytest.mark.threat("T-I1")
def test_refusals_that_nobody_reads_do_not_pile_up(start_gate: StartGate) -> None:
    """Denied requests in a pipeline, their answers unread: each costs ten times its size, without any bound."""
    gate = start_gate()
    with connect_small(gate) as conn:
        conn.setblocking(False)
        data, until = DENIED * 2000, time.monotonic() + 2
        while time.monotonic() < until and unsent(gate) < 8 * MB:
            try:
                sent = conn.send(data)
                data = (data[sent:] + DENIED * 2000)[: 4000 * len(DENIED)]
            except BlockingIOError:
                time.sleep(0.002)
        assert unsent(gate) < 4 * MB


@pytest.mark.threat("T-I1")
def test_an_upload_behind_an_unread_one_is_not_taken_into_memory(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """A server that answers without reading leaves its full connection to the pool, and no next upload pauses."""
    answer = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.recv(512)
        answer.wait(10)
        conn.sendall(OK)
        threading.Event().wait(3)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)

    def held() -> int:
        found = [session.upstream for session in list(gate.gateway.state.sessions)]
        return max((each.transport.get_write_buffer_size() for each in found if each is not None), default=0)

    chunk = b"c000\r\n" + bytes(0xC000) + b"\r\n"
    with gate.connect() as conn:
        conn.sendall(ask(origin, method="POST", extra="Transfer-Encoding: chunked\r\n"))
        for _ in range(400):
            conn.sendall(chunk)
            gate.call(asyncio.sleep(0.002))
            if held() > 200 * 1024:
                break
        conn.sendall(chunk * 2 + b"0\r\n\r\n")  # over the mark and to the end in one read
        gate.call(asyncio.sleep(0.05))
        answer.set()
        read_until(conn, b"hello")
    most = 0
    with gate.connect() as conn:
        conn.setblocking(False)
        data = ask(origin, method="POST", extra="Content-Length: 1000000000\r\n") + bytes(MB)
        until = time.monotonic() + 1
        while time.monotonic() < until and most < 16 * MB:
            try:
                conn.send(data)
                data = bytes(MB)
            except OSError:
                time.sleep(0.005)
            most = max(most, held())
    assert most < 4 * MB


# Connections that no timer ends


@pytest.mark.threat("T-I1")
@pytest.mark.usefixtures("quick_sweep")
def test_a_client_that_does_not_read_is_closed_between_requests(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """`keep_alive_s` closes politely, which waits for the unread answers for ever; the session stays, with no timer."""
    origin = start_origin(answer_size_in_path)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=SHORT)
    with connect_small(gate) as conn:
        leave_unread(gate, origin, conn, 100_000)
        gate.call(asyncio.sleep(3))  # ten times every limit, and a second for the last words
        assert gate.gateway.counters.open_connections == 0


@pytest.mark.threat("T-I3")
@pytest.mark.usefixtures("quick_sweep")
def test_closing_connections_count_and_end(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A session that is over leaves its connection to an unread buffer: open for ever, and no limit counts it."""
    origin = start_origin(answer_size_in_path)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=SHORT)
    clients: list[socket.socket] = []
    for _ in range(3):
        conn = connect_small(gate)
        clients.append(conn)
        leave_unread(gate, origin, conn, 100_000)
        conn.sendall(ask(origin, "/50000", extra="Connection: close\r\n"))
    ours = {conn.getsockname()[1] for conn in clients}
    gate.call(asyncio.sleep(3))
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    held = [row for row in rows if int(row[2].split(":")[1], 16) in ours and row[9] != "0"]
    for conn in clients:
        conn.close()
    assert len(held) == 0, "the gateway still holds connections of sessions that have ended"


@pytest.mark.threat("T-I3")
@pytest.mark.usefixtures("quick_sweep")
def test_a_kept_upstream_with_unsent_bytes_is_let_go(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The pool closes politely too: a server that never reads keeps a descriptor of ours for each upload."""
    answer, finish = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.recv(512)
        answer.wait(10)
        conn.sendall(OK)
        finish.wait(20)

    origin = start_origin(handle)
    limits = Limits(upstream_idle_s=0.3, idle_s=10, response_s=10)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=limits)
    chunk = b"c000\r\n" + bytes(0xC000) + b"\r\n"
    try:
        with gate.connect() as conn:
            conn.sendall(ask(origin, method="POST", extra="Transfer-Encoding: chunked\r\n"))
            wait_until(lambda: len(gate.gateway.state.sessions) == 1, "the client to be accepted")
            (session,) = gate.gateway.state.sessions
            for _ in range(400):
                conn.sendall(chunk)
                gate.call(asyncio.sleep(0.002))
                if session.upstream is not None and session.upstream.transport.get_write_buffer_size() > 100_000:
                    break
            conn.sendall(b"0\r\n\r\n")
            gate.call(asyncio.sleep(0.05))
            answer.set()
            assert read_until(conn, b"hello").endswith(b"hello")
        wait_until(lambda: gate.gateway.state.pool.size == 0, "the pool to let go")
        gate.call(asyncio.sleep(2.5))
        assert upstreams_of(origin) == 0
    finally:
        finish.set()


@pytest.mark.threat("T-I3")
@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_server_that_leaves_at_once_is_noticed(
    end: str, start_gate: StartGate, start_origin: StartOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end can come before the exchange looks: then no one is told, and the client waits for `response_s`.

    It happens by itself in about one of ten tries with several addresses; a moment after dialling makes it certain.
    """

    def handle(conn: socket.socket, origin: Origin) -> None:
        if end == "reset":
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def dial_slowly(*where: Any) -> tuple[Channel, IPAddress]:
        dialled = await dial(*where)
        await asyncio.sleep(0.1)
        return dialled

    monkeypatch.setattr("exeat.gateway.gates.admission.dial", dial_slowly)
    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        conn.sendall(ask(origin))
        assert read_until(conn, b"\r\n\r\n").startswith(b"HTTP/1.1 502")


# Time


@pytest.mark.threat("T-L3")
def test_a_pipeline_of_denied_requests_leaves_room_for_others(start_gate: StartGate) -> None:
    """Between two refusals of one client the loop comes round to everybody else."""
    gate = start_gate()
    with most_between_turns(gate, lambda: sum(gate.gateway.counters.decisions.values())) as most:
        flood(gate, b"", DENIED * 7000, 1)
    assert len(gate.decisions()) == 7000
    assert most[0] <= 2


@pytest.mark.threat("T-L3")
def test_tiny_chunks_are_not_passed_on_as_such(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """What arrives together goes on as one chunk: the server gets a few large ones for 100,000 of one byte."""
    got = bytearray()

    def collect(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, got)
        while data := conn.recv(1 << 20):
            got.extend(data)

    origin = start_origin(collect)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    flood(gate, ask(origin, method="POST", extra="Transfer-Encoding: chunked\r\n"), b"1\r\nx\r\n" * 100_000, 1)
    wait_until(lambda: got.count(b"x") == 100_000, "all of the body to arrive")
    assert got.count(b"\r\n") < 2_000


@pytest.mark.threat("T-I6")
def test_a_head_in_single_bytes_is_looked_at_once() -> None:
    """What has been judged of a head that is still arriving is not judged again with each byte that follows."""
    _check_partial_head(b"GET\n", 4)
    with pytest.raises(ProtocolError):
        _check_partial_head(b"GET\n", 3)


@pytest.mark.threat("T-I8")
def test_slow_names_do_not_keep_others_from_being_resolved(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Sixty-four names under a wildcard whose server is silent take all places, and other names time out waiting."""
    origin = start_origin()
    rules = [f"*.wild.test:{origin.port} private", f"good.test:{origin.port} private"]
    gate = start_gate(allow=rules, limits=Limits(dns_s=10.0))

    async def lookup(name: str) -> Sequence[str]:
        if name.endswith("wild.test"):
            await asyncio.sleep(20)
        return ["127.0.0.1"]

    gate.gateway.state.resolver._lookup = lookup
    assert gate.send(ask(origin)).endswith(b"hello")  # the control
    gate.gateway.state.resolver.forget_all()
    gate.call(_clear_pool(gate.gateway.state.pool.clear))
    waiting: list[socket.socket] = []
    for number in range(130):
        conn = gate.connect()
        conn.sendall(ask(origin, host=f"n{number}.wild.test"))
        waiting.append(conn)
    gate.call(asyncio.sleep(0.1))
    answer = gate.send(ask(origin))
    pending = len(gate.gateway.state.resolver._asked)
    for conn in waiting:
        conn.close()
    assert answer.endswith(b"hello")
    assert pending > 16  # the slow ones are still being waited for


@pytest.mark.threat("T-I8")
def test_look_ups_that_time_out_do_not_leave_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out frees the place but not the thread, so a DNS server that is slow enough makes any number of them."""
    release = threading.Event()

    def answer_late(*_: object, **__: object) -> list[object]:
        release.wait(20)
        return []

    monkeypatch.setattr("exeat.gateway.gates.resolve.socket.getaddrinfo", answer_late)

    async def ask_for_many() -> int:
        resolver = Resolver(0.1)
        for turn in range(3):
            names = [resolver.resolve(f"n{turn}-{number}.wild.test") for number in range(64)]
            results = await asyncio.gather(*names, return_exceptions=True)
            assert all(isinstance(result, ResolveError) for result in results)
        return sum(thread.name == "exeat-dns" for thread in threading.enumerate())

    try:
        assert asyncio.run(ask_for_many()) <= 64
    finally:
        release.set()


async def _clear_pool(clear: Callable[[], None]) -> None:
    clear()
