"""Limits hold, are told to whoever meets them, and leave nothing behind (B5, B6, I1, I3)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from exeat.gateway.flow.channel import Channel
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.sources import make_policy
from tests.support.clients.answers import assert_refused, parse_answer, reset, send_anyway
from tests.support.clients.talk import connect_dial, read_exactly, read_reply, socks_dial
from tests.support.fixtures.gateways import StartGate, StartOrigin, StartRawOrigin, StartServing
from tests.support.gateways.gate import LoopThread, read_all, read_until
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS as SERVE_HOSTS
from tests.support.origins.plain import OK, Origin, echo
from tests.support.origins.raw import keep_silent
from tests.support.programs import give_up

pytestmark = pytest.mark.usefixtures("quick_sweep")

HOSTS = {"good.test": "127.0.0.1", "other.test": "127.0.0.1"}


def get(port: int, host: str = "good.test", extra: str = "") -> bytes:
    return f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n{extra}\r\n".encode()


def upload(port: int, size: int, host: str = "good.test") -> bytes:
    head = f"POST http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + b"\x80" * size


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    """Let this process have so many; skip by name where that is not granted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
        except (ValueError, OSError):
            give_up(f"RLIMIT_NOFILE: the hard limit is {hard}, and {count} are needed")
    try:
        yield
    finally:
        if soft < count:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, count)))


# Connections


def test_ten_thousand_idle_connections_disturb_nobody(serve: StartServing, start_origin: StartOrigin) -> None:
    """B5: while 10,000 clients say nothing another one is served by every door, and all of them can leave."""
    origin = start_origin()
    with many_descriptors(10_500), contextlib.ExitStack() as stack:
        policy = "[limits]\nmax_connections = 20000\nmax_connections_per_sandbox = 20000\n"
        serving = serve("--allow", f"good.test:{origin.port}", *SERVE_HOSTS, policy=policy)
        if resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE)[0] < 10_500:
            give_up("RLIMIT_NOFILE: the server does not get 10,500 descriptors")
        baseline = serving.settled_descriptors()
        for number in range(10_000):
            conn = stack.enter_context(socket.socket())
            conn.bind((f"127.0.0.{2 + number // 2_500}", 0))  # four addresses: enough ports, whatever the range is
            conn.connect(("127.0.0.1", serving.port))
        wait_until(lambda: serving.descriptors >= baseline + 10_000, "all of them to be accepted")
        assert serving.get("good.test", origin.port).body == b"hello"
        with serving.connect() as conn:
            assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        with serving.connect() as conn:
            assert socks_dial(conn, b"good.test", origin.port) == 0
        stack.close()
        wait_until(lambda: serving.descriptors <= baseline + 2, "all of them to be let go")  # + kept upstreams


def test_one_connection_too_many_is_503_and_the_next_is_served_again(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """B4: a whole answer that says so, for as long as the others stay, and not longer."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(max_connections_per_sandbox=10))
    counters = gate.gateway.counters
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(gate.connect())
        wait_until(lambda: counters.open_connections == 10, "ten connections")
        for _ in range(3):
            with gate.connect() as conn:
                assert_refused(read_all(conn), 503, "connection_limit_reached")
    wait_until(lambda: counters.open_connections == 0, "all to leave")
    assert parse_answer(gate.send(get(origin.port))).body == b"hello"
    assert counters.rejected_connections == 3


@pytest.mark.threat("T-I3")
def test_running_out_of_descriptors_is_survived(serve: StartServing, start_origin: StartOrigin) -> None:
    """With 64 descriptors, clients beyond them are closed or told 503; when the others leave all is well again.

    The log has every decision, and nothing is written about it that looks like a crash.
    """
    origin = start_origin(echo)
    plain = start_origin()
    serving = serve("--allow", f"good.test:{origin.port}", "--allow", f"good.test:{plain.port}", *SERVE_HOSTS)
    baseline = serving.settled_descriptors()
    serving.limit(resource.RLIMIT_NOFILE, 64)
    opened, refused = 0, 0
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            conn = stack.enter_context(serving.connect())
            try:
                conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port)
                raw = read_until(conn, b"\r\n\r\n")
            except ConnectionError:
                raw = b""
            if raw.startswith(b"HTTP/1.1 200"):
                opened += 1
            else:
                assert raw == b"" or raw.startswith(b"HTTP/1.1 503"), raw
                refused += 1
        assert opened > 10
        assert refused > 10
    wait_until(lambda: serving.descriptors <= baseline, "the descriptors to come back")
    wait_until(lambda: serving.get("good.test", plain.port).status == 200, "service")
    assert "Traceback" not in serving.errors


@pytest.mark.threat("T-I3")
def test_descriptors_come_back_after_two_thousand_tunnels(serve: StartServing, start_origin: StartOrigin) -> None:
    """Opened and ended in every way, by either side, before and after the first byte."""
    chance = random.Random(3)

    def handle(conn: socket.socket, origin: Origin) -> None:
        data = conn.recv(100)
        match data[-1:]:
            case b"c":
                return
            case b"r":
                reset(conn)
            case b"h":
                conn.shutdown(socket.SHUT_WR)
                conn.recv(100)
            case b"e":
                conn.sendall(data)
                conn.recv(100)

    origin = start_origin(handle)
    serving = serve("--allow", f"good.test:{origin.port}", *SERVE_HOSTS)
    baseline = serving.settled_descriptors()

    def client(count: int) -> None:
        for _ in range(count):
            with serving.connect() as conn:
                conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port)
                how = chance.randrange(8)
                if how == 0:
                    reset(conn)
                    continue
                if how == 1:
                    continue
                read_until(conn, b"\r\n\r\n")
                conn.sendall(b"\x80" + chance.choice((b"c", b"r", b"h", b"e")))
                with contextlib.suppress(OSError):  # a reset by the server is passed on
                    match how:
                        case 2:
                            reset(conn)
                        case 3:
                            conn.shutdown(socket.SHUT_WR)
                            read_all(conn)
                        case 4 | 5:
                            conn.recv(10)

    threads = [threading.Thread(target=client, args=(500,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: serving.descriptors <= baseline, f"the descriptors to come back to {baseline}")
    wait_until(
        lambda: len(serving.lines("end")) == len([x for x in serving.lines("decision") if x["verdict"] == "allow"]),
        "an end line for each decision",
    )


class Narrow(Gateway):
    """A gateway whose clients' sockets take little, so that what is unsent stays with it. Keeps its channels."""

    def __init__(self, port: int, limits: Limits | None = None) -> None:
        self.channels: list[Channel] = []
        self._narrow = socket.socket()
        self._narrow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self._narrow.bind(("127.0.0.1", 0))
        policy = make_policy([f"good.test:{port}"], hosts={"good.test": "127.0.0.1"})
        super().__init__(policy, listeners=[self._narrow], limits=limits)

    def _make_channel(self) -> Channel:
        self.channels.append(super()._make_channel())
        return self.channels[-1]

    async def aclose(self, *, drain_s: float = 0.0) -> None:
        await super().aclose(drain_s=drain_s)
        self._narrow.close()

    def ask(self, origin: Origin, keeps: str) -> socket.socket:
        """A client that asks, gets the first byte, and reads no further."""
        conn = socket.socket()
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        conn.settimeout(10)
        conn.connect(("127.0.0.1", self.port))
        conn.sendall(get(origin.port, extra=f"Connection: {keeps}\r\n"))
        assert conn.recv(1) == b"H"
        return conn


def answer_200_kb(conn: socket.socket, origin: Origin) -> None:
    """More than the sockets take, less than the gateway does: for the gateway the exchange is over."""
    origin.read_head(conn, bytearray())
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000))


both_endings = pytest.mark.parametrize("keeps", ["close", "keep-alive"])


@pytest.mark.threat("T-I1")
@both_endings
def test_a_client_that_never_reads_its_answer_is_given_up(keeps: str, start_origin: StartOrigin) -> None:
    """The answer is complete, the gateway has closed, and the client takes nothing: it must not stay for ever."""
    origin = start_origin(answer_200_kb)
    thread = LoopThread()
    gateway = Narrow(origin.port, Limits(idle_s=0.2, keep_alive_s=0.2, response_s=0.2, head_s=0.2))
    thread.call(gateway.start())
    try:
        with gateway.ask(origin, keeps):
            wait_until(lambda: gateway.channels[0].closed, "the gateway to give up")
    finally:
        thread.call(gateway.aclose())
        thread.stop()


@both_endings
def test_stopping_waits_for_bytes_that_are_on_their_way(keeps: str, start_origin: StartOrigin) -> None:
    """B8: the end of a download that a slow client has not taken yet is part of what is under way."""
    origin = start_origin(answer_200_kb)
    thread = LoopThread()
    gateway = Narrow(origin.port)
    thread.call(gateway.start())
    try:
        with gateway.ask(origin, keeps) as conn:
            wait_until(lambda: gateway.counters.received > 200_000, "the answer to be complete")
            stopping = asyncio.run_coroutine_threadsafe(gateway.aclose(drain_s=20), thread.loop)
            time.sleep(0.3)  # if it were to cut the connection off, it would do so now
            received = read_all(conn)
            stopping.result(20)
        assert received.endswith(bytes(200_000))
    finally:
        thread.stop()


# Budgets


def answer_uploads(conn: socket.socket, origin: Origin) -> None:
    """Read each body to its end, and say how long it was."""
    buffer = bytearray()
    while (head := origin.read_head(conn, buffer)) is not None:
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(buffer) < length:
            data = conn.recv(65_536)
            if not data:
                return
            buffer += data
        del buffer[:length]
        conn.sendall(OK)


def test_a_rules_upload_budget_covers_all_its_requests(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """B6: bodies add up over connections; the one that goes over gets 413, and other rules are not touched."""
    origin = start_origin(answer_uploads)
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload=10KB", f"other.test:{origin.port}"], hosts=HOSTS)
    for _ in range(3):
        assert parse_answer(gate.send(upload(origin.port, 3_000))).status == 200
    with gate.connect() as conn:
        assert_refused(send_anyway(conn, upload(origin.port, 3_000)), 413, "http_request_denied")
    assert parse_answer(gate.send(upload(origin.port, 30_000, "other.test"))).status == 200
    wait_until(lambda: sum(line["event"] == "end" for line in gate.lines()) == 5, "the end lines")
    notes = [line["note"] for line in gate.lines() if line["event"] == "end"]
    assert notes == ["", "", "", "upload-budget-spent", ""]


@pytest.mark.parametrize("through", ["connect", "socks"])
def test_an_upload_budget_closes_a_tunnel(
    through: str, start_gate: StartGate, start_raw_origin: StartRawOrigin
) -> None:
    """B6: two tunnels share one budget; nothing beyond it reaches the server, and the log says why they ended."""
    origin = start_raw_origin(keep_silent)
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload=100KB"], hosts=HOSTS)
    with gate.connect() as first, gate.connect() as second:
        for conn in (first, second):
            if through == "connect":
                assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
            else:
                assert socks_dial(conn, b"good.test", origin.port) == 0
        first.sendall(b"\x80" * 60_000)
        wait_until(lambda: origin.received == 60_000, "the first part")
        send_anyway(second, b"\x80" * 60_000)
    wait_until(lambda: sum(line["event"] == "end" for line in gate.lines()) == 2, "the end lines")
    ends = [line for line in gate.lines() if line["event"] == "end"]
    assert sorted(end["note"] for end in ends) == ["", "upload-budget-spent"]
    assert sum(end["sent"] for end in ends) == origin.received <= 100_000


@pytest.mark.parametrize("size", [1_000, 40_000, 400_000])
def test_an_upload_budget_counts_to_the_end_of_a_tunnel(
    size: int, start_gate: StartGate, start_raw_origin: StartRawOrigin
) -> None:
    """Not only what comes while the tunnel is judged: behind that bytes may go on without Python looking at them."""
    origin = start_raw_origin(keep_silent)
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload={3 * size}"], hosts=HOSTS)
    with gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        for part in range(1, 4):
            conn.sendall(b"\x80" * size)
            wait_until(lambda so_far=part * size: origin.received == so_far, "a part")  # type: ignore[misc]
        conn.sendall(b"\x80")
        wait_until(lambda: sum(line["event"] == "end" for line in gate.lines()) == 1, "the end line")
    (end,) = [line for line in gate.lines() if line["event"] == "end"]
    assert (end["note"], end["sent"], origin.received) == ("upload-budget-spent", 3 * size, 3 * size)


def test_a_sandboxs_upload_budget_covers_all_its_rules(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """B6: `limits.max_upload` is for everything together, a rule's own budget inside it; downloads are free."""
    origin = start_origin(answer_uploads)
    gate = start_gate(
        allow=[f"good.test:{origin.port} max_upload=8KB", f"other.test:{origin.port}"],
        hosts=HOSTS,
        limits=Limits(max_upload=10_000),
    )
    assert parse_answer(gate.send(upload(origin.port, 5_000))).status == 200
    assert parse_answer(gate.send(upload(origin.port, 4_000, "other.test"))).status == 200
    for host in ("other.test", "good.test"):
        with gate.connect() as conn:
            assert_refused(send_anyway(conn, upload(origin.port, 2_000, host)), 413, "http_request_denied")


def test_a_download_costs_no_upload_budget(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """B6: a tunnel whose budget is tiny carries any amount down."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.recv(10)
        conn.sendall(bytes(3_000_000))

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload=1KB"], hosts=HOSTS)
    with gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        conn.sendall(b"\x80")
        assert len(read_all(conn)) == 3_000_000


def test_an_upload_budget_counts_what_is_sent_in_heads(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """B6: a query or a header carries data out as well as a body does."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload=10KB"], hosts=HOSTS)
    answers = [parse_answer(gate.send(get(origin.port, extra=f"X: {'a' * 5_000}\r\n"))).status for _ in range(4)]
    assert answers[-1] != 200


# Heads


def test_header_limits_hold_for_responses_too(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A response head over the limit is 502; one below it passes."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while (head := origin.read_head(conn, buffer)) is not None:
            size = int(head.partition(b"X-Size: ")[2].partition(b"\r\n")[0])
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + b"a" * size + b"\r\n\r\n")

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(max_header_bytes=4_096))
    assert parse_answer(gate.send(get(origin.port, extra="X-Size: 3000\r\n"))).status == 200
    assert_refused(gate.send(get(origin.port, extra="X-Size: 5000\r\n")), 502, "http_protocol_error")


@pytest.mark.threat("T-I1")
def test_a_second_sandbox_is_not_touched_by_a_full_first(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Limits are a gateway's own; another gateway in the same process serves on."""
    origin = start_origin()
    full = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS, limits=Limits(max_connections=2))
    free = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with full.connect(), full.connect() as conn:
        conn.sendall(b"G")
        wait_until(lambda: full.gateway.counters.open_connections == 2, "two connections")
        with full.connect() as third:
            assert read_reply(third).status == 503
        assert parse_answer(free.send(get(origin.port))).body == b"hello"
        with free.connect() as conn2:
            assert connect_dial(conn2, b"good.test:%d" % origin.port).status == 200
            assert read_exactly(conn2, 0) == b""
