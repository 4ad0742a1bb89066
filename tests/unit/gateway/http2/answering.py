"""Servers for the streams of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.gateways.http2_peers import Origin

Handler = Callable[[Origin, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: Value\r\n\r\nhello"


def answering(response: bytes) -> Handler:
    """Answers each request, none of which may have a body, with these bytes."""

    async def handle(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await origin.head(reader)
            writer.write(response)

    return handle


hello = answering(OK)
