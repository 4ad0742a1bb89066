"""Transports, those of C and those of asyncio: a channel above them must not see a difference."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from pathlib import Path

import pytest

from exeat.gateway.flow import streams
from exeat.gateway.flow.streams import Listening, Streams
from tests.support.gateways.transports import (
    NATIVE,
    RESET,
    Seen,
    accepting,
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
        accepted, (_, port), listening = await accepting(Seen, host="::1")
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
        accepted, where, listening = await accepting(Seen)
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
        closing: list[Listening] = []

        class Closer(Seen):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                while closing:
                    closing.pop().close()

        ours = Streams(asyncio.get_running_loop())
        made: list[list[Closer]] = []
        places = []
        for _ in range(3):
            accepted, where, listening = await accepting(Closer, ours)
            made.append(accepted)
            places.append(where)
            closing.append(listening)
        clients = []
        for where in places * 3:
            clients.append(socket.socket())
            clients[-1].setblocking(False)
            clients[-1].connect_ex(where)
        await until(lambda: any(made))
        await asyncio.sleep(0.02)
        (only,) = [each for accepted in made for each in accepted]
        only.transport.abort()
        await only.ended
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
