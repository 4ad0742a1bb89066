"""Where TCP transports come from: from C where that was built (flow/native), and from asyncio where it was not.

Both have the interface of asyncio's transports, and nothing above the channel knows which it is. The C ones take two
thirds of the system calls, and hand bytes on from one connection to another without Python.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from exeat.gateway.flow._streams import Poller, Stream

_BACKLOG: Final = 4096
_INTERFACE: Final = 1  # native/module.c has the same


def _native_types() -> tuple[type[Poller], type[Stream]] | None:
    if os.environ.get("EXEAT_STREAMS") == "asyncio":
        return None
    try:
        from exeat.gateway.flow._streams import INTERFACE, Poller, Stream
    except ImportError:  # there was no compiler when exeat was installed, or it is not Linux
        return None
    return (Poller, Stream) if INTERFACE == _INTERFACE else None  # or it was built from other sources


_native: Final = _native_types()
IS_NATIVE: Final = _native is not None


class Listening(Protocol):
    def close(self) -> None:
        """Listen no more, and close the socket."""


class Streams:
    """The connections of one owner, in its loop. Only among these are bytes handed on without Python.

    Holds neither memory nor descriptors while there are no connections and no listeners.
    """

    __slots__ = ("_poller", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._poller = _native[0]() if _native is not None else None

    async def listen(self, sock: socket.socket, factory: Callable[[], asyncio.Protocol]) -> Listening:
        """Accept connections from a bound socket, which is this listener's from here on."""
        sock.setblocking(False)
        sock.listen(_BACKLOG)  # here: uvloop does not tell if another program listens already
        if self._poller is None:
            return await self.loop.create_server(factory, sock=sock, backlog=_BACKLOG)
        return self._poller.listen(self.loop, sock, factory)

    async def connect(self, protocol: asyncio.Protocol, address: str, port: int) -> None:
        """Connect to an address. Raises OSError. For gates/dial.py, which takes none that was not judged."""
        if self._poller is None:
            await self.loop.create_connection(lambda: protocol, address, port)
            return
        stream, connected = self._poller.connect(self.loop, protocol, address, port)
        try:
            await connected
        except BaseException:
            stream.abort()
            raise

    async def adopt(self, protocol: asyncio.Protocol, sock: socket.socket) -> None:
        """Use a connected socket, which is the transport's from here on."""
        if self._poller is None:
            await self.loop.create_connection(lambda: protocol, sock=sock)
        else:
            self._poller.adopt(self.loop, protocol, sock.detach())


async def bind(loop: asyncio.AbstractEventLoop, host: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Sockets to listen on, one for each address of the host. Raises OSError."""
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    unsupported: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                unsupported = error  # a kernel without IPv6, of which the resolver does not know
                continue
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
        if unsupported is not None and not bound:
            raise unsupported
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def as_stream(transport: object) -> Stream | None:
    """The transport, if it is one of C."""
    return transport if _native is not None and isinstance(transport, _native[1]) else None
