"""Transports, those of C and those of asyncio: a channel above them must not see a difference."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exeat.gateway.flow import streams
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Listening, Streams, bind
from tests.support.gateways.transports import (
    NATIVE,
    RESET,
    Seen,
    most_descriptor,
    needs_native,
    open_descriptors,
    pair,
    receive_all,
    run,
    seen_pair,
    until,
)


@pytest.fixture(params=["c", "asyncio"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "asyncio":
        monkeypatch.setattr(streams, "_native", None)
    elif not NATIVE:
        pytest.skip("exeat was installed without its C streams (hatch_build.py)")
    return str(request.param)


@pytest.fixture
def native() -> None:
    if not NATIVE:
        pytest.skip("exeat was installed without its C streams (hatch_build.py)")


def test_bytes_and_ends_go_both_ways(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen, client = await seen_pair()
        await loop.sock_sendall(client, b"hello")
        await until(lambda: seen.data == b"hello")
        client.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in seen.told)
        seen.transport.write(b"good")
        seen.transport.write(memoryview(b"bye"))
        seen.transport.write_eof()
        assert await receive_all(client) == b"goodbye"
        seen.transport.close()
        assert seen.transport.is_closing()
        await seen.ended
        assert seen.told == ["made", "eof", "lost"]
        assert seen.lost is None
        client.close()

    run(main)


def test_a_peer_that_does_not_read_pauses_the_writer(kind: str) -> None:
    async def main() -> None:
        seen, client = await seen_pair()
        sent = os.urandom(1 << 20)
        while "pause" not in seen.told:
            seen.transport.write(sent)
            await asyncio.sleep(0)
        waiting = seen.transport.get_write_buffer_size()
        assert waiting > 0
        writes = seen.told.count("pause")
        assert writes == 1
        seen.transport.close()  # behind all that was written
        got = await receive_all(client)
        assert len(got) % len(sent) == 0
        assert got == sent * (len(got) // len(sent))
        await seen.ended
        client.close()

    run(main)


def test_nothing_is_read_while_reading_is_paused(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen, client = await seen_pair()
        seen.transport.pause_reading()
        assert not seen.transport.is_reading()
        await loop.sock_sendall(client, b"early")
        await asyncio.sleep(0.05)
        assert seen.data == b""
        seen.transport.resume_reading()
        await until(lambda: seen.data == b"early")
        seen.transport.abort()
        await seen.ended
        client.close()

    run(main)


def test_the_end_comes_once_and_after_the_call_that_caused_it(kind: str) -> None:
    async def main() -> None:
        seen, client = await seen_pair()
        seen.transport.close()
        seen.transport.abort()
        seen.transport.close()
        assert "lost" not in seen.told
        await seen.ended
        await asyncio.sleep(0.01)
        assert seen.told.count("lost") == 1
        seen.transport.abort()
        assert seen.transport.get_extra_info("socket") is None or kind == "asyncio"
        client.close()

    run(main)


def test_a_reset_is_an_error(kind: str) -> None:
    async def main() -> None:
        seen, client = await seen_pair()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        await seen.ended
        assert isinstance(seen.lost, ConnectionResetError)

    run(main)


@needs_native
def test_what_came_before_a_write_failed_can_still_be_read() -> None:
    """Channel.connection_lost counts on it: the descriptor is open until it returns."""

    class Last(Seen):
        def connection_lost(self, exc: Exception | None) -> None:
            sock = self.transport.get_extra_info("socket")
            self.data += os.read(sock.fileno(), 100)
            super().connection_lost(exc)

    async def main() -> None:
        seen, client = await pair(Last)
        assert isinstance(seen, Seen)
        seen.transport.pause_reading()
        client.send(b"the answer")
        seen.transport.write(b"x")  # unread, so that closing resets
        await asyncio.sleep(0.01)
        client.close()
        await asyncio.sleep(0.01)
        while not seen.ended.done():
            seen.transport.write(b"more")
            await asyncio.sleep(0)
        assert isinstance(seen.lost, OSError)
        assert seen.data == b"the answer"

    run(main)


def test_a_refused_connection_is_an_error_and_leaves_nothing(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            (kept, client) = await seen_pair()  # so that what belongs to the loop is there
            before = open_descriptors()
            for _ in range(3):
                seen = Seen()
                with pytest.raises(ConnectionRefusedError):
                    await Streams(loop).connect(seen, "127.0.0.1", port)
                await asyncio.sleep(0.01)
                assert seen.told == []
            assert open_descriptors() == before
            kept.transport.abort()
            client.close()

    run(main)


@needs_native
def test_a_connection_that_is_given_up_leaves_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as deaf, socket.socket() as one, socket.socket() as two:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            for filler in (one, two):
                filler.setblocking(False)
                filler.connect_ex(deaf.getsockname())
            kept, client = await seen_pair()
            before = open_descriptors()
            seen = Seen()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await Streams(loop).connect(seen, *deaf.getsockname())
            await asyncio.sleep(0.01)
            assert open_descriptors() == before
            assert seen.told == []
            kept.transport.abort()
            client.close()

    run(main)


def test_ipv6_and_names_of_peers(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        (sock,) = await bind(loop, "::1", 0, reuse_port=True)
        accepted: list[Seen] = []

        def factory() -> Seen:
            accepted.append(Seen())
            return accepted[-1]

        port = sock.getsockname()[1]
        listening = await Streams(loop).listen(sock, factory)
        out = Seen()
        await Streams(loop).connect(out, "::1", port)
        await until(lambda: accepted and accepted[0].told)
        assert out.transport.get_extra_info("peername")[:2] == ("::1", port)
        assert accepted[0].transport.get_extra_info("peername")[0] == "::1"
        assert accepted[0].transport.get_extra_info("socket").family == socket.AF_INET6
        assert out.transport.get_extra_info("unknown", 5) == 5
        for each in (out, *accepted):
            each.transport.abort()
            await each.ended
        listening.close()

    run(main)


def test_a_connected_socket_can_be_adopted(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            sock = socket.create_connection(server.getsockname())
            sock.setblocking(False)
            other, _ = server.accept()
            seen = Seen()
            await Streams(loop).adopt(seen, sock)
            other.sendall(b"hello")
            await until(lambda: seen.data == b"hello")
            other.close()
            await until(lambda: "eof" in seen.told)
            seen.transport.close()
            await seen.ended

    run(main)


@needs_native
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_in_a_callback_ends_that_connection_alone() -> None:
    class Broken(Seen):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        other, quiet = await seen_pair()
        broken, client = await pair(Broken)
        assert isinstance(broken, Seen)
        client.send(b"x")
        await broken.ended
        assert isinstance(broken.lost, ValueError)
        assert reported == [broken.lost]
        quiet.send(b"y")
        await until(lambda: other.data == b"y")
        other.transport.abort()
        for each in (client, quiet):
            each.close()

    run(main)


@needs_native
def test_an_interrupt_in_a_callback_ends_the_loop() -> None:
    class Interrupted(Seen):
        def data_received(self, data: bytes) -> None:
            raise KeyboardInterrupt

    async def main() -> None:
        _, client = await pair(Interrupted)
        client.send(b"x")
        with client:
            await asyncio.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        run(main)


def test_a_protocol_can_be_replaced_while_it_is_told(kind: str) -> None:
    class Second(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(4)
            self.data = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.buffer[:nbytes]

    second = Second()

    class First(Seen):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.set_protocol(second)

    async def main() -> None:
        first, client = await pair(First)
        assert isinstance(first, Seen)
        client.send(b"one")
        await until(lambda: first.data)
        client.send(b"two and more")
        await until(lambda: second.data == b"two and more")
        first.transport.abort()
        await asyncio.sleep(0.01)
        client.close()

    run(main)


@needs_native
def test_clients_are_told_by_a_close_when_descriptors_run_out() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        (sock,) = await bind(loop, "127.0.0.1", 0, reuse_port=False)
        accepted: list[Seen] = []

        def factory() -> Seen:
            accepted.append(Seen())
            return accepted[-1]

        where = sock.getsockname()
        listening = await Streams(loop).listen(sock, factory)
        clients = [socket.socket() for _ in range(4)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptor() + 1, hard))
        fillers: list[int] = []
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    fillers.append(os.open("/dev/null", os.O_RDONLY))
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, where)
            for client in clients:
                async with asyncio.timeout(20):
                    assert await loop.sock_recv(client, 1) == b""
            assert accepted == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        with socket.socket() as again:
            again.setblocking(False)
            await loop.sock_connect(again, where)
            await until(lambda: accepted)
            accepted[0].transport.abort()
            await accepted[0].ended
        listening.close()
        for client in clients:
            client.close()

    run(main)


@needs_native
def test_a_listener_can_be_closed_by_the_connection_that_it_accepted() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        closing: list[Listening] = []

        class Closer(Seen):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                while closing:
                    closing.pop().close()

        made: list[Seen] = []

        def factory() -> Seen:
            made.append(Closer())
            return made[-1]

        places = []
        for _ in range(3):
            (sock,) = await bind(loop, "127.0.0.1", 0, reuse_port=False)
            places.append(sock.getsockname())
            closing.append(await Streams(loop).listen(sock, factory))
        clients = []
        for where in places * 3:
            clients.append(socket.socket())
            clients[-1].setblocking(False)
            clients[-1].connect_ex(where)
        await until(lambda: made and made[0].told)
        await asyncio.sleep(0.02)
        assert len(made) == 1
        made[0].transport.abort()
        await made[0].ended
        for client in clients:
            client.close()

    run(main)


@needs_native
def test_what_a_closed_loop_left_is_closed_by_the_garbage_collector() -> None:
    left: list[Seen] = []

    async def leave() -> None:
        seen, client = await seen_pair()
        left.append(seen)
        client.close()
        seen.transport.pause_reading()

    run(leave)
    descriptor = left[0].transport.get_extra_info("socket").fileno()
    assert Path(f"/proc/self/fd/{descriptor}").is_socket()
    left.clear()
    gc.collect()
    assert not Path(f"/proc/self/fd/{descriptor}").exists()


@needs_native
def test_without_connections_no_descriptor_is_held() -> None:
    async def main() -> None:
        before = open_descriptors()
        seen, client = await seen_pair()
        assert open_descriptors() > before
        client.close()
        seen.transport.close()
        await seen.ended
        await asyncio.sleep(0)
        assert open_descriptors() == before

    run(main)


@needs_native
def test_streams_of_different_owners_do_not_forward_to_each_other() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, first = await pair(lambda: Channel(loop))
        two, second = await pair(lambda: Channel(loop))
        assert isinstance(one, Channel)
        assert isinstance(two, Channel)
        assert not one.forward_to(two, 1)
        for each in (one, two):
            each.abort()
        await until(lambda: one.closed and two.closed)
        first.close()
        second.close()

    run(main)


# Forwarding


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
    assert isinstance(client, Channel)
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
        loop = asyncio.get_running_loop()
        ours = Streams(loop)
        source, sender = await pair(lambda: Channel(loop), ours)
        target, deaf = await pair(lambda: Channel(loop), ours)
        assert isinstance(source, Channel)
        assert isinstance(target, Channel)
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
        ours = Streams(loop)
        source, sender = await pair(lambda: Channel(loop), ours)
        target, reader = await pair(lambda: Channel(loop), ours)
        assert isinstance(source, Channel)
        assert isinstance(target, Channel)
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
