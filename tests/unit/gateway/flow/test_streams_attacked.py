"""Streams in C where something around them fails: descriptors, callbacks, the loop itself."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import socket
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from exeat.gateway.flow.streams import Streams, bind
from tests.support.gateways.transports import (
    RESET,
    Seen,
    accepting,
    most_descriptor,
    needs_native,
    pair,
    receive_all,
    run,
    seen_pair,
    until,
)


@needs_native
@pytest.mark.parametrize("end", ["finished", "reset"])
def test_the_end_is_told_when_those_who_wait_have_seen_the_last_bytes(end: str) -> None:
    """A request in one flight with the end of TLS's handshake and its own: the handshake was taken for cut off."""

    class Noting(Seen):
        def data_received(self, data: bytes) -> None:
            asyncio.get_running_loop().call_soon(self.told.append, "seen")

    async def main() -> None:
        seen, client = await pair(Noting)
        seen.transport.pause_reading()
        client.send(b"x")
        if end == "finished":
            client.shutdown(socket.SHUT_WR)
        else:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        await asyncio.sleep(0.01)
        seen.transport.resume_reading()
        await until(lambda: {"eof", "lost"} & set(seen.told))
        assert seen.told[:2] == ["made", "seen"]
        seen.transport.abort()
        await seen.ended
        client.close()

    run(main)


@needs_native
def test_clients_are_told_again_after_the_spare_descriptor_was_lost() -> None:
    """It is given up for a moment to accept and close; a thread that resolves a name may take its place just then. The
    gateway never got it back, and at the next shortage all clients waited while the loop ran for nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        accepted, where, listening = await accepting(Seen)
        clients = [socket.socket() for _ in range(2)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        fillers: list[int] = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # not even the spare one can be had
            clients[0].connect(where)
            await asyncio.sleep(0.02)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: accepted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptor() + 1, hard))
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    fillers.append(os.open("/dev/null", os.O_RDONLY))
            clients[1].connect(where)
            clients[1].setblocking(False)
            async with asyncio.timeout(20):
                assert await loop.sock_recv(clients[1], 1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        listening.close()
        accepted[0].transport.abort()
        await accepted[0].ended
        for client in clients:
            client.close()

    run(main)


@needs_native
def test_a_socket_is_closed_where_no_epoll_can_be_had_for_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, other = socket.socketpair()
        ours.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                await Streams(loop).adopt(Seen(), ours)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        other.setblocking(False)
        assert other.recv(1) == b""
        other.close()

    run(main)


@needs_native
def test_an_empty_buffer_is_an_error() -> None:
    """As with asyncio. The stream was asked for it in each turn of the loop, which had no rest any more."""

    class Empty(asyncio.BufferedProtocol):
        asked = 0
        lost: list[Exception | None]

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            self.lost = []

        def get_buffer(self, sizehint: int) -> bytearray:
            self.asked += 1
            return bytearray()

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.append(exc)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        empty, client = await pair(Empty)
        client.send(b"x")
        await until(lambda: empty.lost)
        assert isinstance(empty.lost[0], RuntimeError)
        assert empty.asked == 1
        client.close()

    run(main)


@needs_native
@pytest.mark.threat("T-I1")
def test_tiny_pieces_take_no_more_memory_than_they_say() -> None:
    """Each was a piece of its own, forty times as large: ten megabytes for a connection before its source was told."""

    async def main() -> None:
        seen, client = await seen_pair()
        while not seen.transport.get_write_buffer_size():
            seen.transport.write(bytes(1 << 16))
        before = seen.transport.get_write_buffer_size()
        sent = b"".join(b"%07d" % i for i in range(20_000))
        tracemalloc.start()
        for at in range(0, len(sent), 7):
            seen.transport.write(sent[at : at + 7])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen.transport.get_write_buffer_size() == before + len(sent)
        assert taken < 1.5 * len(sent)
        seen.transport.write_eof()
        assert (await receive_all(client)).endswith(sent)
        seen.transport.abort()
        await seen.ended
        client.close()

    run(main)


class _Loop:
    """A loop of which one call to `call_soon` fails when told so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        if self.fails:
            self.fails = False
            raise MemoryError
        return self._loop.call_soon(callback, *args)


@needs_native
def test_streams_end_although_the_loop_could_not_be_asked_once() -> None:
    """No stream of this loop ended any more outside of a turn of its own."""

    async def main() -> None:
        loop = _Loop(asyncio.get_running_loop())
        ours = Streams(loop)  # type: ignore[arg-type]  # in all but name
        (one, first), (other, second) = await pair(Seen, ours), await pair(Seen, ours)
        loop.fails = True
        one.transport.abort()
        other.transport.abort()
        await until(lambda: one.ended.done() and other.ended.done())
        first.close()
        second.close()

    run(main)


@needs_native
def test_a_reset_in_the_last_turn_of_a_loop_leaves_nothing() -> None:
    """Its bytes were told in that turn, and the reset was to be told in the next one, which never came."""
    from exeat.gateway.flow._streams import Poller, Stream

    class Stopper(Seen):
        def data_received(self, data: bytes) -> None:
            asyncio.get_running_loop().stop()

    async def main() -> None:
        seen, client = await pair(Stopper)
        seen.transport.pause_reading()
        client.send(b"x")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        await asyncio.sleep(0.01)
        seen.transport.resume_reading()

    def in_a_loop() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(main())
        loop.run_forever()
        task.result()
        loop.close()

    def left() -> list[object]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, Poller | Stream)]

    before = len(left())
    in_a_loop()
    left()
    assert len(left()) == before


@needs_native
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_listener_that_is_garbage_is_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket had been cleared by then, and could not be asked any more."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: told.append(each.exc_value))

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        (sock,) = await bind(loop, "127.0.0.1", 0, reuse_port=False)
        sockets = [sock]  # in a cycle, and before the poller in the eyes of the collector
        sockets.append(sockets)  # type: ignore[arg-type]
        gc.collect()
        await Streams(loop).listen(sock, Seen)

    run(leave)
    gc.collect()
    assert not [each for each in told if not isinstance(each, ResourceWarning)]


def test_a_kernel_without_ipv6_listens_on_the_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio does it: names such as localhost lead to both."""
    families = [socket.AF_INET6, socket.AF_INET]

    class Sockets(socket.socket):
        def __init__(self, family: int = -1, *more: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *more, **named)

    class Finder(_Loop):
        async def getaddrinfo(self, *_: object, **__: object) -> list[tuple[object, ...]]:
            hosts = {socket.AF_INET6: "::1", socket.AF_INET: "127.0.0.1"}
            return [(each, socket.SOCK_STREAM, 6, "", (hosts[each], 0)) for each in families]

    async def main() -> None:
        finder = Finder(asyncio.get_running_loop())
        (sock,) = await bind(finder, "localhost", 0, reuse_port=False)  # type: ignore[arg-type]
        assert sock.getsockname()[0] == "127.0.0.1"
        sock.close()
        families.pop()
        with pytest.raises(OSError, match="not supported"):
            await bind(finder, "localhost", 0, reuse_port=False)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Sockets)
    run(main)
