"""Transports alone: one end of a connection as its protocol sees it, and a plain socket at the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from exeat.gateway.flow import streams
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Listening, Streams, bind
from exeat.gateway.process import run_in_loop

NATIVE = streams._native is not None
needs_native = pytest.mark.skipif(not NATIVE, reason="exeat was installed without its C streams (hatch_build.py)")
RESET = struct.pack("ii", 1, 0)
Made = TypeVar("Made", bound=asyncio.BaseProtocol)


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


async def accepting(
    make: Callable[[], Made], ours: Streams | None = None, host: str = "127.0.0.1"
) -> tuple[list[Made], tuple[str, int], Listening]:
    """Listen. Returns the protocols of those that will have been accepted, where to connect to, and the listener."""
    loop = asyncio.get_running_loop()
    (sock,) = await bind(loop, host, 0, reuse_port=False)
    made: list[Made] = []

    def factory() -> Made:
        made.append(make())
        return made[-1]

    where = sock.getsockname()[:2]
    return made, where, await (ours or Streams(loop)).listen(sock, factory)  # type: ignore[arg-type]  # BufferedProtocol


async def pair(make: Callable[[], Made], ours: Streams | None = None) -> tuple[Made, socket.socket]:
    """A protocol that was accepted, and the socket at the other end."""
    made, where, listening = await accepting(make, ours)
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, where)
    await until(lambda: made and hasattr(made[0], "transport"))
    listening.close()
    return made[0], client


async def two_channels() -> tuple[Channel, socket.socket, Channel, socket.socket]:
    """Of one owner, each with the socket at its other end: as between a client and a server."""
    loop = asyncio.get_running_loop()
    ours = Streams(loop)
    return (*await pair(lambda: Channel(loop), ours), *await pair(lambda: Channel(loop), ours))


async def seen_pair() -> tuple[Seen, socket.socket]:
    return await pair(Seen)


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
