"""A server that refuses an upload while it is under way answers, closes, and resets what still comes.

Its answer has reached this machine by then, and a client without a gateway reads it. So must one with a gateway.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import uvloop

from exeat.gateway.flow.channel import Channel
from tests.support.clients.answers import parse_answer, reset
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import read_until
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin
from tests.support.origins.raw import RawOrigin

HOSTS = {"good.test": "127.0.0.1"}
TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge"
UPLOAD_BYTES = 20_000_000
ROUNDS = 25


def refuse(conn: socket.socket, origin: Origin) -> None:
    """Answer as soon as the head is there, and close with the body unread: the kernel sends a reset."""
    origin.read_head(conn, bytearray())
    conn.sendall(TOO_LARGE)


def upload(conn: socket.socket, head: bytes) -> bytes:
    """Send as much as is taken, and then read, as clients do."""
    block = bytes(65_536)
    try:
        conn.sendall(head)
        for _ in range(UPLOAD_BYTES // len(block)):
            conn.sendall(block)
    except OSError:
        pass
    received = bytearray()
    try:
        while data := conn.recv(65_536):
            received += data
    except OSError:
        pass
    return bytes(received)


def head_for(where: str, target: str = "/") -> bytes:
    return f"POST {target} HTTP/1.1\r\nHost: {where}\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n".encode()


def test_an_early_answer_reaches_the_client(start_gate: StartGate, start_origin: StartOrigin) -> None:
    origin = start_origin(refuse)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    where = f"good.test:{origin.port}"
    direct, through = [], []
    for _ in range(ROUNDS):
        with socket.create_connection(("127.0.0.1", origin.port), 10) as conn:
            direct.append(upload(conn, head_for(where)))
        with gate.connect() as conn:
            through.append(upload(conn, head_for(where, f"http://{where}/")))
    assert direct == [TOO_LARGE] * ROUNDS  # the control
    answers = [parse_answer(raw, "POST") for raw in through]
    assert [(answer.status, answer.body) for answer in answers] == [(413, b"large")] * ROUNDS


def test_an_early_answer_reaches_the_client_over_tls(start_intercepted: StartIntercepted) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        conn.sendall(TOO_LARGE)

    scene = start_intercepted(handler=handle)
    statuses = []
    for _ in range(ROUNDS):
        with scene.open() as conn:
            statuses.append(upload(conn, head_for("good.test"))[:12])
    assert statuses == [b"HTTP/1.1 413"] * ROUNDS


def test_what_came_before_a_reset_goes_through_a_tunnel(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Said, and reset while the client still sends. What was said comes first, and then the reset."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        conn.recv(1)
        conn.sendall(b"go away" * 1_000)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    for _ in range(ROUNDS):
        with gate.connect() as conn:
            conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port)
            read_until(conn, b"\r\n\r\n")
            got = upload(conn, b"\x80")
        assert got == b"go away" * 1_000


def test_what_a_client_sent_before_its_reset_goes_through_a_tunnel(
    start_gate: StartGate, start_origin: StartOrigin
) -> None:
    got: list[bytes] = []
    go_on = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        received = bytearray(conn.recv(1))
        go_on.wait(10)
        try:
            while data := conn.recv(65_536):
                received += data
        except ConnectionResetError:
            got.append(bytes(received))

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    with gate.connect() as conn:
        conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % origin.port)
        read_until(conn, b"\r\n\r\n")
        conn.sendall(b"\x80last words")
        reset(conn)
    go_on.set()
    wait_until(lambda: bool(got), "the reset to be passed on")
    assert got == [b"\x80last words"]


# The same without chance: the reset is there before anything is written


class Collect:
    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []

    def on_data(self, data: bytes) -> None:
        self.data += data

    def on_eof(self) -> None:
        """Not waited for."""


def after_reset(check: Callable[[Channel, socket.socket, Collect], None]) -> Collect:
    """A channel that is not reading while its peer speaks and resets, and then is written to."""

    async def main() -> Collect:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _, channel = await loop.create_connection(lambda: Channel(loop), *listener.getsockname())
            far, _ = listener.accept()
        collect = Collect()
        lost: asyncio.Future[None] = loop.create_future()

        def on_lost(error: Exception | None) -> None:
            collect.lost.append(error)
            lost.set_result(None)

        channel.when_lost(on_lost)
        channel.push_to(collect)
        channel.transport.pause_reading()
        channel.write(b"unread")
        far.setblocking(True)
        check(channel, far, collect)
        channel.write(b"into the void")  # fails at once: the reset is there
        async with asyncio.timeout(10):
            await lost
        return collect

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def test_a_write_that_fails_does_not_lose_what_was_received() -> None:
    def speak_and_reset(channel: Channel, far: socket.socket, collect: Collect) -> None:
        far.sendall(b"an answer" * 10_000)
        far.close()  # with something unread, which makes it a reset

    collect = after_reset(speak_and_reset)
    assert collect.data == b"an answer" * 10_000
    assert [type(error) for error in collect.lost] in ([BrokenPipeError], [ConnectionResetError])


def test_what_cannot_be_passed_on_is_not_collected() -> None:
    """Its taker is slow: there it ends, as a cut, and not in memory."""

    def speak_and_reset(channel: Channel, far: socket.socket, collect: Collect) -> None:
        far.sendall(b"an answer" * 10_000)
        far.close()
        channel.pause_for_peer()

    assert after_reset(speak_and_reset).data == b""
