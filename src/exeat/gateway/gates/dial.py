"""The one place where a connection goes out. It takes addresses that the policy has judged, never names."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from exeat.errors import ExeatError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.resolve import IPAddress

# RFC 8305 section 5 recommends 250 ms between two attempts.
_ATTEMPT_DELAY_S = 0.25


class DialError(ExeatError):
    """Nobody answered. `kind` is the RFC 9209 error type."""

    def __init__(self, public: str, kind: str, *, timed_out: bool = False) -> None:
        super().__init__(public)
        self.kind = kind
        self.timed_out = timed_out


async def dial(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[IPAddress], port: int, timeout_s: float
) -> tuple[Channel, IPAddress]:
    """Connect to the first of `addresses` that answers, racing the families (RFC 8305)."""
    try:
        if len(addresses) > 1:
            async with asyncio.timeout(timeout_s):
                return await _race(loop, addresses, port)
        return await _connect(loop, addresses[0], port, timeout_s), addresses[0]
    except TimeoutError:
        raise DialError("the server did not answer in time", "connection_timeout", timed_out=True) from None
    except OSError as error:
        raise _explain(error) from None


async def _connect(loop: asyncio.AbstractEventLoop, ip: IPAddress, port: int, timeout_s: float) -> Channel:
    """One address. What asyncio.timeout does, without its 10 us and two getpid calls on Python 3.11."""
    task = asyncio.current_task(loop)
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = loop.call_later(timeout_s, expire)
    try:
        _, channel = await loop.create_connection(lambda: Channel(loop), str(ip), port)
    except asyncio.CancelledError:
        if expired and task.uncancel() <= 0:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    return channel


async def _race(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[IPAddress], port: int
) -> tuple[Channel, IPAddress]:
    import aiohappyeyeballs  # only for names with several addresses

    infos: list[aiohappyeyeballs.AddrInfoType] = []
    for ip in addresses:
        family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
        where = (str(ip), port) if ip.version == 4 else (str(ip), port, 0, 0)
        infos.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where))
    connected = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=_ATTEMPT_DELAY_S, interleave=1)
    try:
        peer = connected.getpeername()[0]
        _, channel = await loop.create_connection(lambda: Channel(loop), sock=connected)
    except BaseException:
        connected.close()
        raise
    return channel, ip_address(peer)


def _explain(error: OSError) -> DialError:
    if isinstance(error, ConnectionRefusedError):
        return DialError("the server refused the connection", "connection_refused")
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        return DialError("the gateway is out of connections", "connection_limit_reached")
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        return DialError("the server is not reachable", "destination_ip_unroutable")
    if isinstance(error, TimeoutError):
        return DialError("the server did not answer in time", "connection_timeout", timed_out=True)
    return DialError("the connection to the server failed", "connection_terminated")
