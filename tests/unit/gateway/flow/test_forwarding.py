"""Bytes that C hands on from one connection to another: the same bytes, the same ends, the same back-pressure."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from tests.support.gateways.transports import RESET, needs_native, pair, run, seen_pair, two_channels, until


@contextmanager
def echoing(limit_s: float = 60) -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets, and ends when its client does."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(limit_s)

    def serve(conn: socket.socket) -> None:
        conn.settimeout(limit_s)
        with conn:
            try:
                while data := conn.recv(1 << 16):
                    conn.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                conn, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[conn], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server.getsockname()
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


async def forwarded(where: tuple[str, int], large_most: int) -> tuple[Channel, Channel, socket.socket]:
    """A client, and the two channels of its tunnel to a server, which hand on without Python."""
    loop = asyncio.get_running_loop()
    ours = Streams(loop)
    client, sock = await pair(lambda: Channel(loop), ours)
    server = Channel(loop)
    await ours.connect(server, *where)
    for one, other in ((client, server), (server, client)):
        other.fed_by(one)
        assert one.forward_to(other, large_most)
    return client, server, sock


@needs_native
@pytest.mark.parametrize("seed", range(6))
def test_forwarded_bytes_are_the_same_in_the_same_order(seed: int) -> None:
    choose = random.Random(seed)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with echoing() as where:
            client, server, sock = await forwarded(where, 1 << 40)
            if seed % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            content = choose.randbytes(choose.choice([1, 1000, 1_000_000]))
            got = bytearray()

            async def send() -> None:
                at = 0
                while at < len(content):
                    size = choose.choice([1, 100, 20_000, 500_000])
                    await loop.sock_sendall(sock, content[at : at + size])
                    at += size
                sock.shutdown(socket.SHUT_WR)
                await until(lambda: client.eof)
                server.write_eof()

            sending = loop.create_task(send())
            while data := await loop.sock_recv(sock, choose.choice([500, 4096, 1 << 17])):
                got += data
                if choose.random() < 0.01:
                    await asyncio.sleep(0.005)  # now and then the reader is slow
                if len(got) == len(content):
                    await sending
                    await until(lambda: server.eof)
                    client.write_eof()
            assert got == content
            for each in (client, server):
                each.count_moved()
                assert (each.received, each.sent) == (len(content), len(content))
                each.close()
            sock.close()
            await until(lambda: client.closed and server.closed)

    run(main)


@needs_native
def test_a_peer_that_does_not_read_stops_the_source() -> None:
    async def main() -> None:
        source, sender, target, deaf = await two_channels()
        target.fed_by(source)
        assert source.forward_to(target, 1 << 40)
        sent, most = 0, 64 << 20
        while sent < most:
            try:
                sent += sender.send(bytes(1 << 16))
            except BlockingIOError:
                before = sent
                await asyncio.sleep(0.05)
                if source.transport.is_reading() is False and before == sent:
                    break
        assert sent < most
        assert target.writing_paused
        assert target.transport.get_write_buffer_size() <= 512 * 1024
        for each in (source, target):
            each.abort()
        await until(lambda: source.closed and target.closed)
        sender.close()
        deaf.close()

    run(main)


@needs_native
def test_a_large_transfer_comes_back_to_python() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        source, sender, target, reader = await two_channels()
        assert source.forward_to(target, 100_000)
        got = 0

        async def read() -> None:
            nonlocal got
            while data := await loop.sock_recv(reader, 1 << 16):
                got += len(data)

        reading = loop.create_task(read())
        await loop.sock_sendall(sender, bytes(2_000_000))
        await until(lambda: source.buffer)
        source.count_moved()
        assert source.received >= 100_000
        assert got < 2_000_000
        for each in (source, target):
            each.abort()
        await reading
        sender.close()
        reader.close()

    run(main)


@needs_native
def test_small_pieces_are_never_large() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with echoing() as where:
            client, server, sock = await forwarded(where, 50_000)
            for _ in range(200):
                await loop.sock_sendall(sock, bytes(1000))
                left = 1000
                while left:
                    left -= len(await loop.sock_recv(sock, left))
            assert client.buffer == server.buffer == b""
            for each in (client, server):
                each.count_moved()
                assert (each.received, each.sent) == (200_000, 200_000)
                each.abort()
            await until(lambda: client.closed and server.closed)
            sock.close()

    run(main)


@needs_native
@pytest.mark.parametrize("seed", range(8))
def test_connections_that_break_off_at_any_moment(seed: int) -> None:
    """Many at once, ended in every way from either side, while bytes are on their way: all end, nothing stays open."""
    choose = random.Random(seed)

    async def one(where: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        client, server, sock = await forwarded(where, choose.choice([1000, 1 << 40]))
        try:
            await loop.sock_sendall(sock, choose.randbytes(choose.choice([1, 5000, 400_000])))
        except OSError:
            pass
        await asyncio.sleep(choose.choice([0, 0.001, 0.01]))
        match choose.randrange(6):
            case 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.close()
            case 1:
                client.abort()
            case 2:
                server.close()
            case 3:
                client.reset()
            case 4:
                server.write_eof()
                client.close()
            case 5:
                sock.shutdown(socket.SHUT_RDWR)
        await asyncio.sleep(choose.choice([0, 0.01]))
        for each in (client, server):
            each.abort()
        await until(lambda: client.closed and server.closed)
        sock.close()

    async def main() -> None:
        with echoing() as where:
            kept, client = await seen_pair()
            await asyncio.gather(*(one(where) for _ in range(20)))
            kept.transport.abort()
            await kept.ended
            client.close()

    run(main)


@needs_native
def test_streams_of_different_owners_do_not_forward_to_each_other() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, first = await pair(lambda: Channel(loop))
        two, second = await pair(lambda: Channel(loop))
        assert not one.forward_to(two, 1)
        for each in (one, two):
            each.abort()
        await until(lambda: one.closed and two.closed)
        first.close()
        second.close()

    run(main)
