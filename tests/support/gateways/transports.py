"""Transports alone: one end of a connection as its protocol sees it, and a plain socket at the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from exeat.gateway.flow import streams
from exeat.gateway.flow.streams import Streams, bind
from exeat.gateway.process import run_in_loop

NATIVE = streams._native is not None
needs_native = pytest.mark.skipif(not NATIVE, reason="exeat was installed without its C streams (hatch_build.py)")
RESET = struct.pack("ii", 1, 0)


class Seen(asyncio.Protocol):
    """What a transport told."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.told: list[str] = []
        self.transport: asyncio.Transport
        self.lost: Exception | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is one in all but name
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.told.append("eof")
        return True

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.lost = exc
        if not self.ended.done():
            self.ended.set_result(None)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is the kernel
            await asyncio.sleep(0.001)


async def pair(
    make: Callable[[], asyncio.Protocol] = Seen, ours: Streams | None = None
) -> tuple[asyncio.Protocol, socket.socket]:
    """A protocol that was accepted, and the socket at the other end."""
    loop = asyncio.get_running_loop()
    (sock,) = await bind(loop, "127.0.0.1", 0, reuse_port=False)
    made: list[asyncio.Protocol] = []

    def factory() -> asyncio.Protocol:
        made.append(make())
        return made[-1]

    where = sock.getsockname()
    listening = await (ours or Streams(loop)).listen(sock, factory)
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, where)
    await until(lambda: made and hasattr(made[0], "transport"))
    listening.close()
    return made[0], client


async def seen_pair() -> tuple[Seen, socket.socket]:
    seen, client = await pair()
    assert isinstance(seen, Seen)
    return seen, client


async def receive_all(sock: socket.socket) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while data := await loop.sock_recv(sock, 1 << 16):
        got += data
    return bytes(got)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def most_descriptor() -> int:
    return max(int(each.name) for each in Path("/proc/self/fd").iterdir())


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> int:
        await main()
        return 0

    assert run_in_loop(whole()) == 0
