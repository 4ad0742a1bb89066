"""Idle upstream connections: only those that can be trusted are kept, and only for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.pool import Pool, Route

KEY = ("good.test", 80, "good.test", False)


def route(address: str) -> Route:
    return address, ()


class Peers:
    """Connections with both ends at hand."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.far: list[socket.socket] = []

    async def connect(self) -> Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: Channel(loop), "127.0.0.1", self._listener.getsockname()[1])
        self.far.append(self._listener.accept()[0])
        return channel

    def close(self) -> None:
        for conn in (*self.far, self._listener):
            conn.close()


@contextlib.asynccontextmanager
async def peers() -> AsyncIterator[Peers]:
    made = Peers()
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is the kernel
            await asyncio.sleep(0.005)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wrapped())


def test_a_channel_that_was_paused_for_its_last_user_reads_for_the_next() -> None:
    """What it is released from takes its pauses along."""

    async def main() -> None:
        async with peers() as far:
            channel = await far.connect()
            channel.pause_for_peer()
            far.far[0].sendall(b"late")
            await asyncio.sleep(0.02)
            assert channel.buffer == b""
            assert not channel.transport.is_reading()
            channel.release()
            await until(lambda: channel.buffer == b"late")
            channel.abort()

    run(main)


def test_the_last_one_in_is_the_first_one_out() -> None:
    """With where it leads; an empty pool returns nothing."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(10, 30)
            one, two = await far.connect(), await far.connect()
            pool.give(KEY, one, route("127.0.0.1"))
            pool.give(KEY, two, route("127.0.0.2"))
            assert pool.size == 2
            assert pool.take(("other.test", 80, "other.test", False), must_be_open=True) is None
            assert pool.take(KEY, must_be_open=True) == (two, route("127.0.0.2"))
            assert pool.take(KEY, must_be_open=True) == (one, route("127.0.0.1"))
            assert pool.take(KEY, must_be_open=True) is None
            assert pool.size == 0
            one.abort()
            two.abort()

    run(main)


@pytest.mark.parametrize("what", ["speaks", "ends", "resets"])
def test_a_server_that_does_anything_is_dropped(what: str) -> None:
    """What it says now would be taken for the answer to the next request."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(10, 30)
            channel = await far.connect()
            pool.give(KEY, channel, route(""))
            if what == "speaks":
                far.far[0].sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            elif what == "ends":
                far.far[0].shutdown(socket.SHUT_WR)
            else:
                far.far[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                far.far[0].close()
            await until(lambda: pool.size == 0)
            assert pool.take(KEY, must_be_open=False) is None
            await until(lambda: channel.closed)

    run(main)


def test_a_close_that_the_loop_has_not_seen_is_seen_by_the_kernel() -> None:
    """For a request that cannot be sent twice the connection must be open at this very moment."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(10, 30)
            stale, fresh = await far.connect(), await far.connect()
            pool.give(KEY, fresh, route("fresh"))
            pool.give(KEY, stale, route("stale"))
            far.far[0].close()  # and no turn of the loop in between
            taken = pool.take(KEY, must_be_open=True)
            assert taken == (fresh, route("fresh"))
            assert pool.size == 0
            fresh.abort()

    run(main)


def test_the_number_kept_is_bounded() -> None:
    """In all and for each host; what is too much is closed."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(2, 30)
            channels = [await far.connect() for _ in range(3)]
            for channel in channels:
                pool.give(KEY, channel, route(""))
            assert pool.size == 2
            await until(lambda: channels[2].closed)
            pool.clear()
            assert pool.size == 0
            await until(lambda: all(channel.closed for channel in channels))

    run(main)


def test_what_has_been_idle_for_too_long_is_closed() -> None:
    """By the sweep, and nothing else is."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(10, 30)
            channel = await far.connect()
            pool.give(KEY, channel, route(""))
            now = asyncio.get_running_loop().time()
            pool.sweep(now + 29)
            assert pool.size == 1
            pool.sweep(now + 31)
            assert pool.size == 0
            await until(lambda: channel.closed)

    run(main)


def test_a_connection_with_something_left_in_it_is_not_kept() -> None:
    """Unread bytes, or an end: it goes no further."""

    async def main() -> None:
        async with peers() as far:
            pool = Pool(10, 30)
            dirty, ended = await far.connect(), await far.connect()
            far.far[0].sendall(b"rest")
            far.far[1].shutdown(socket.SHUT_WR)
            await until(lambda: bool(dirty.buffer) and ended.eof)
            for channel in (dirty, ended):
                pool.give(KEY, channel, route(""))
            assert pool.size == 0
            await until(lambda: dirty.closed and ended.closed)

    run(main)
