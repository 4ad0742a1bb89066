"""Bytes for tunnels, poured in and drunk."""

from __future__ import annotations

import hashlib
import random
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.support.clients.talk import connect_dial, socks_dial
from tests.support.gateways.gate import Gate
from tests.support.gateways.scene import wait_until

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
