"""Servers behind a hostile client."""

from __future__ import annotations

import asyncio

from tests.support.gateways.http2_peers import Origin, read_chunked


async def hello_after_body(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        if b"chunked" in await origin.head(reader):
            await read_chunked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


async def never(origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await origin.head(reader)
    while await reader.read(65536):
        pass
