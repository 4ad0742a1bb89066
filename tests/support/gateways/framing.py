"""Requests that two readers could read in two ways: the same cases for plain HTTP, TLS and HTTP/2."""

from __future__ import annotations

import socket

from tests.support.origins.raw import RawOrigin

SECOND = "/smuggled"


def post(*headers: str, body: str = "", version: str = "1.1", method: str = "POST") -> str:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"{method} http://good.test:{{port}}/ HTTP/{version}\r\nHost: good.test:{{port}}\r\n{lines}\r\n{body}"


def statuses(answer: bytes) -> list[int]:
    """The status of each response in a stream of them."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


B3_BAD_BODIES = {
    "0x5": "0x5\r\nhello\r\n0\r\n\r\n",
    "1_0": "1_0\r\nhellohellohello!\r\n0\r\n\r\n",
    "+5": "+5\r\nhello\r\n0\r\n\r\n",
    "-5": "-5\r\nhello\r\n0\r\n\r\n",
    "space before": " 5\r\nhello\r\n0\r\n\r\n",
    "space behind": "5 \r\nhello\r\n0\r\n\r\n",
    "no size": "\r\nhello\r\n0\r\n\r\n",
    "not a number": "x\r\nhello\r\n0\r\n\r\n",
    "2 to the 64th": "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "bare LF after the size": "5\nhello\r\n0\r\n\r\n",
    "bare CR after the size": "5\rhello\r\n0\r\n\r\n",
    "bare LF in an extension": "5;\nhello\r\n0\r\n\r\n",
    "bare CR in an extension": "5;a\rb\r\nhello\r\n0\r\n\r\n",
    "bare LF after the data": "5\r\nhello\n0\r\n\r\n",
    "data longer than its size": "4\r\nhello\r\n0\r\n\r\n",
    "two other bytes after the data": "5\r\nhelloXX0\r\n\r\n",
    "bare LF at the end": "5\r\nhello\r\n0\n\n",
    "bare LF in the trailers": "5\r\nhello\r\n0\r\nX: y\n\r\n",
    "a trailer without a colon": "5\r\nhello\r\n0\r\nX\r\n\r\n",
    "a folded trailer": "5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n",
    "NUL in a trailer": "5\r\nhello\r\n0\r\nX: \0\r\n\r\n",
}


WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def websocket_answer(response: bytes) -> object:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(response)
        while data := origin.read(conn, raw):
            conn.sendall(data.upper())

    return handle


ACCEPT = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"


PATHS = {
    "/pub/../secret": ("/secret", False),
    "/pub/%2e%2e/secret": ("/secret", False),
    "/pub/.%2E/secret": ("/secret", False),
    "/pub/./../secret": ("/secret", False),
    "/pub//../secret": ("/secret", False),
    "//secret": ("/secret", False),
    "/secret": ("/secret", False),
    "/PUB/x": ("/PUB/x", False),
    "/public": ("/public", False),
    "/": ("/", False),
    "/pub/a": ("/pub/a", True),
    "/pub//a": ("/pub/a", True),
    "/pub/./a/../b": ("/pub/b", True),
    "/%70ub/a": ("/pub/a", True),
    "/secret/../pub/a": ("/pub/a", True),
    "/pub/a?next=/../secret": ("/pub/a?next=/../secret", True),
    "/../pub/a": ("/pub/a", True),
}
