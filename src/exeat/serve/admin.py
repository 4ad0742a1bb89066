"""`/healthz` and `/metrics`, on an address of their own that no sandbox can reach through the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from exeat.errors import StartError
from exeat.serve.metrics import Snapshot, render
from exeat.serve.settings import AdminAddress

Collect = Callable[[], Awaitable[Sequence[Snapshot]]]
_HEAD_S: Final = 5.0


class Admin:
    """The admin address. Bound at once, so that its port is known before a gateway starts; serves when told to."""

    def __init__(self, address: AdminAddress, server: asyncio.Server) -> None:
        self._address = address
        self._server = server

    @property
    def port(self) -> int:
        """The TCP port, which no door of the gateway may lead to; 0 for a Unix socket."""
        return 0 if self._address.path else int(self._server.sockets[0].getsockname()[1])

    def __str__(self) -> str:
        return str(self._address if self._address.path else replace(self._address, port=self.port))

    async def serve(self) -> None:
        try:
            await self._server.start_serving()
        except OSError as error:
            raise _cannot_serve(self._address, error) from None

    def close(self) -> None:
        self._server.close()
        if self._address.path:
            with suppress(OSError):
                os.unlink(self._address.path)


async def open_admin(address: AdminAddress | None, collect: Collect) -> Admin | None:
    """Take the address. Raises StartError if it cannot be had."""
    if address is None:
        return None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, collect))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    try:
        if address.path:
            listener = _bind_unix(address.path)
            return Admin(address, await asyncio.start_unix_server(serve, sock=listener, start_serving=False))
        return Admin(address, await asyncio.start_server(serve, address.host, address.port, start_serving=False))
    except OSError as error:
        raise _cannot_serve(address, error) from None


def _cannot_serve(address: AdminAddress, error: OSError) -> StartError:
    return StartError(f"cannot serve the admin address {address}: {error.strerror or error}")


def _bind_unix(path: str) -> socket.socket:
    _remove_stale(path)
    # Bound by hand so that the socket never exists with wider rights than 0600.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody answers on, left by a run that was killed. Anything else is left alone."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


async def _answer(head: bytes, collect: Collect) -> bytes:
    request = head.split(b"\r\n", 1)[0].split(b" ")
    if len(request) != 3 or request[0] not in (b"GET", b"HEAD"):
        return _encode("405 Method Not Allowed", "only GET and HEAD are served here\n", extra="Allow: GET, HEAD\r\n")
    answer = await _answer_get(request[1].split(b"?", 1)[0], collect)
    return answer if request[0] == b"GET" else answer[: answer.index(b"\r\n\r\n") + 4]


async def _answer_get(path: bytes, collect: Collect) -> bytes:
    if path == b"/healthz":
        snapshots = await collect()
        if snapshots and all(snapshot["healthy"] for snapshot in snapshots):
            return _encode("200 OK", "ok\n")
        return _encode("503 Service Unavailable", "the audit log cannot be written, so everything is refused\n")
    if path == b"/metrics":
        return _encode("200 OK", render(await collect()), "text/plain; version=0.0.4")
    return _encode("404 Not Found", "here are /healthz and /metrics\n")


def _encode(status: str, text: str, kind: str = "text/plain", extra: str = "") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Connection: close\r\n\r\n"
    ).encode("ascii") + body
