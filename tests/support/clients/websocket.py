"""WebSockets by hand: frames of any shape, and a server that sends what it is told."""

from __future__ import annotations

import socket
import struct
import time

from tests.support.origins.raw import RawHandler, RawOrigin, read_head, receive_all

UPGRADE = (
    b"GET /chat HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: %b\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


def frame(
    payload: bytes, first: int = 0x82, *, length: int | None = None, wide: bool = False, masked: bool = False
) -> bytes:
    """One frame. `length`: what it says of itself, `wide`: in eight bytes, `masked`: with a mask of zeros."""
    size, mask = len(payload) if length is None else length, 0x80 * masked
    payload = bytes(4) * masked + payload
    if wide or size > 0xFFFF:
        return struct.pack("!BBQ", first, 127 | mask, size) + payload
    if size > 125:
        return struct.pack("!BBH", first, 126 | mask, size) + payload
    return struct.pack("!BB", first, size | mask) + payload


def speaking(*parts: bytes) -> RawHandler:
    """A server of WebSockets that says these parts, each in a record of its own, and waits for the client's end."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        read_head(conn, origin, raw)
        conn.sendall(SWITCHED)
        for part in parts:
            time.sleep(0.01)
            conn.sendall(part)
        receive_all(conn)

    return handle
