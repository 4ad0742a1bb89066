"""Clients that do not read, and a look at how often the gateway's loop comes round."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gateways.gate import Gate
from tests.support.origins.plain import Origin

HOSTS = {"good.test": "127.0.0.1"}
_PIECE = 50_000  # fits one segment of loopback, so the gateway reads the whole answer at once


def ask(origin: Origin, path: str = "/", *, method: str = "GET", host: str = "good.test", extra: str = "") -> bytes:
    where = f"{host}:{origin.port}"
    return f"{method} http://{where}{path} HTTP/1.1\r\nHost: {where}\r\n{extra}\r\n".encode()


def answer_size_in_path(conn: socket.socket, origin: Origin) -> None:
    """`GET /50000` gets that many bytes, for ever."""
    buffer = bytearray()
    while (head := origin.read_head(conn, buffer)) is not None:
        left = int(head.split(b" ")[1][1:])
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left + bytes(min(left, _PIECE)))
        left -= min(left, _PIECE)
        while left:
            conn.sendall(bytes(min(left, 65_536)))
            left -= min(left, 65_536)


def unsent(gate: Gate) -> int:
    """The most that the gateway holds for one of its clients."""
    held = [session.client.transport.get_write_buffer_size() for session in list(gate.gateway.state.sessions)]
    return max(held, default=0)


def connect_small(gate: Gate) -> socket.socket:
    """A client with a small window, so that the kernel holds little for it."""
    conn = socket.socket()
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    conn.settimeout(10)
    conn.connect(("127.0.0.1", gate.port))
    return conn


def leave_unread(gate: Gate, origin: Origin, conn: socket.socket, at_least: int) -> None:
    """Ask for small answers, one after the other, and read none, until the gateway holds that much of them.

    Also ends, as it should, when the gateway no longer takes requests from a client that does not read.
    """
    for _ in range(400):
        before = len(origin.heads)
        conn.sendall(ask(origin, f"/{_PIECE}"))
        gone_on = threading.Event()
        for _ in range(100):
            if len(origin.heads) > before:
                gone_on.set()
                break
            gone_on.wait(0.002)
        gate.call(asyncio.sleep(0.003))
        if not gone_on.is_set() or unsent(gate) > at_least:
            return


def upstreams_of(origin: Origin) -> int:
    """How many connections to this server the gateway, which is in this process, has open."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        count += int(fields[2].split(":")[1], 16) == origin.port and fields[9] != "0"
    return count


@contextmanager
def most_between_turns(gate: Gate, count: Callable[[], int]) -> Iterator[list[int]]:
    """By how much `count` grew at most between two turns of the gateway's loop; put into the list at the end."""
    most = [0]
    running = threading.Event()
    stop = threading.Event()

    async def watch() -> None:
        last = count()
        while not stop.is_set():
            running.set()
            await asyncio.sleep(0)
            now = count()
            most[0] = max(most[0], now - last)
            last = now

    watching = asyncio.run_coroutine_threadsafe(watch(), gate.gateway._loop)
    running.wait(5)
    try:
        yield most
    finally:
        stop.set()
        watching.result(30)


def flood(gate: Gate, opening: bytes, block: bytes, count: int) -> None:
    """`count` clients at once, each of which sends this and reads whatever comes back."""

    def one() -> None:
        with gate.connect(30) as conn:
            reader = threading.Thread(target=_drain, args=(conn,), daemon=True)
            reader.start()
            try:
                conn.sendall(opening)
                conn.sendall(block)
                conn.shutdown(socket.SHUT_WR)
            except OSError:
                return
            reader.join(20)

    clients = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(25)


def _drain(conn: socket.socket) -> None:
    try:
        while conn.recv(1 << 20):
            pass
    except OSError:
        pass
