"""Connections out: the first address that answers, and an error that says which way it failed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.dial import DialError, _explain, dial
from exeat.gateway.gates.resolve import IPAddress


def addresses(*texts: str) -> list[IPAddress]:
    return [ipaddress.ip_address(text) for text in texts]


@contextlib.contextmanager
def listening(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    with socket.create_server((host, port)) as server:
        yield server.getsockname()[1]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def open_sockets() -> int:
    links = list(Path("/proc/self/fd").iterdir())
    return sum(each.is_socket() for each in links)


def test_one_address_is_connected_to() -> None:
    """And comes back with the connection."""

    async def main() -> None:
        with listening() as port:
            channel, ip = await dial(Streams(asyncio.get_running_loop()), addresses("127.0.0.1"), port, 5)
            assert str(ip) == "127.0.0.1"
            channel.abort()
            await asyncio.sleep(0)

    asyncio.run(main())


def test_an_address_that_refuses_does_not_spoil_the_others() -> None:
    """Only the second of three listens; that one comes back, and the others leave nothing open."""

    async def main() -> None:
        with listening("127.0.0.2") as port:
            before = open_sockets()
            streams = Streams(asyncio.get_running_loop())
            channel, ip = await dial(streams, addresses("127.0.0.1", "127.0.0.2", "127.0.0.3"), port, 5)
            assert str(ip) == "127.0.0.2"
            assert open_sockets() == before + 1
            channel.abort()
            await asyncio.sleep(0)

    asyncio.run(main())


def test_an_address_that_is_silent_does_not_hold_up_the_others() -> None:
    """RFC 8305: the next one is tried while the first, whose queue is full, says nothing."""

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            deaf = stack.enter_context(socket.socket())
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            port = deaf.getsockname()[1]
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            stack.enter_context(listening("127.0.0.2", port))
            streams = Streams(asyncio.get_running_loop())
            before = open_descriptors()
            channel, ip = await dial(streams, addresses("127.0.0.1", "127.0.0.2"), port, 10)
            assert str(ip) == "127.0.0.2"
            channel.abort()
            await asyncio.sleep(0)
            with pytest.raises(DialError) as caught:
                await dial(streams, addresses("127.0.0.1"), port, 0.05)
            assert (caught.value.kind, caught.value.status) == ("connection_timeout", 504)
            await asyncio.sleep(0)
            assert open_descriptors() == before

    asyncio.run(main())


@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "::1")])
def test_all_refused_is_refused(hosts: tuple[str, ...]) -> None:
    """However many there were."""

    async def main() -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            with pytest.raises(DialError) as caught:
                await dial(Streams(asyncio.get_running_loop()), addresses(*hosts), held.getsockname()[1], 5)
        assert caught.value.kind == "connection_refused"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ECONNREFUSED, "connection_refused"),
        (errno.EMFILE, "connection_limit_reached"),
        (errno.ENFILE, "connection_limit_reached"),
        (errno.ENOBUFS, "connection_limit_reached"),
        (errno.ENETUNREACH, "destination_ip_unroutable"),
        (errno.EHOSTUNREACH, "destination_ip_unroutable"),
        (errno.EADDRNOTAVAIL, "destination_ip_unroutable"),
        (errno.ETIMEDOUT, "connection_timeout"),
        (errno.EPERM, "connection_terminated"),
    ],
)
def test_errors_have_their_rfc_9209_type(code: int, kind: str) -> None:
    """And a sentence without internals: no number, no address."""
    error = _explain(OSError(code, "secret detail"))
    assert error.kind == kind
    assert "secret" not in error.public
    assert (error.status == 504) == (code == errno.ETIMEDOUT)
