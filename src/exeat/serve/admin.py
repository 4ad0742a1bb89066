"""`/healthz` and `/metrics`, on an address of their own that no sandbox can reach through the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from exeat.errors import StartError
from exeat.serve.metrics import Snapshot, render
from exeat.serve.settings import AdminAddress

Collect = Callable[[], Awaitable[Sequence[Snapshot]]]
_HEAD_S: Final = 5.0


async def start_admin(address: AdminAddress, collect: Collect) -> asyncio.Server:
    """Listen. Raises StartError if the address cannot be had."""

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
            _remove_stale(address.path)
            # Bound by hand so that the socket never exists with wider rights than 0600.
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            old = os.umask(0o177)
            try:
                listener.bind(address.path)
            finally:
                os.umask(old)
            return await asyncio.start_unix_server(serve, sock=listener)
        return await asyncio.start_server(serve, address.host, address.port)
    except OSError as error:
        raise StartError(f"cannot serve the admin address {address}: {error.strerror or error}") from None


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
        return _encode("405 Method Not Allowed", "only GET is served here\n")
    path = request[1].split(b"?", 1)[0]
    if path == b"/healthz":
        snapshots = await collect()
        if snapshots and all(snapshot["healthy"] for snapshot in snapshots):
            return _encode("200 OK", "ok\n")
        return _encode("503 Service Unavailable", "the audit log cannot be written, so everything is refused\n")
    if path == b"/metrics":
        return _encode("200 OK", render(await collect()), "text/plain; version=0.0.4")
    return _encode("404 Not Found", "here are /healthz and /metrics\n")


def _encode(status: str, text: str, kind: str = "text/plain") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii") + body
