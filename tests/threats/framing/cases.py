"""Requests that two readers could read in two ways: the same cases for plain HTTP, TLS and HTTP/2."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from tests.support.origins.raw import RawOrigin

SECOND = "/smuggled"


def post(*headers: str, body: str = "", version: str = "1.1", method: str = "POST") -> str:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"{method} http://good.test:{{port}}/ HTTP/{version}\r\nHost: good.test:{{port}}\r\n{lines}\r\n{body}"


def statuses(answer: bytes) -> list[int]:
    """The status of each response in a stream of them."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


REDIRECTED_BAD = {
    "another host": ("GET / HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 421),
    "another allowed host": ("GET / HTTP/1.1\r\nHost: a.wild.test:{port}\r\n\r\n", 421),
    "another port": ("GET / HTTP/1.1\r\nHost: good.test:1\r\n\r\n", 421),
    "an address": ("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 421),
    "two hosts": ("GET / HTTP/1.1\r\nHost: good.test:{port}\r\nHost: evil.test\r\n\r\n", 400),
    "no host": ("GET / HTTP/1.1\r\n\r\n", 400),
    "a URL": ("GET http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 400),
    "a URL and the right host": ("GET http://evil.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n", 400),
    "a tunnel": ("CONNECT evil.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 405),
    "two lengths": (
        "GET / HTTP/1.1\r\nHost: good.test:{port}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
    ),
    "length and chunked": (
        "POST / HTTP/1.1\r\nHost: good.test:{port}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a bare LF": ("GET / HTTP/1.1\nHost: good.test:{port}\r\n\r\n", 400),
}


B2_BAD = {
    "length and chunked": post("Content-Length: 5", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
    "chunked and length": post("Transfer-Encoding: chunked", "Content-Length: 5", body="0\r\n\r\n"),
    "two lengths": post("Content-Length: 5", "Content-Length: 6", body="hello"),
    "two equal lengths": post("Content-Length: 5", "Content-Length: 5", body="hello"),
    "a list of lengths": post("Content-Length: 5, 5", body="hello"),
    "space before the colon": post("Transfer-Encoding : chunked", body="0\r\n\r\n"),
    "tab before the colon": post("Transfer-Encoding\t: chunked", body="0\r\n\r\n"),
    "vertical tab": post("Transfer-Encoding: \x0bchunked", body="0\r\n\r\n"),
    "form feed behind": post("Transfer-Encoding: chunked\x0c", body="0\r\n\r\n"),
    "NUL behind": post("Transfer-Encoding: chunked\0", body="0\r\n\r\n"),
    "chunked, x": post("Transfer-Encoding: chunked, x", body="0\r\n\r\n"),
    "x, chunked": post("Transfer-Encoding: x, chunked", body="0\r\n\r\n"),
    "gzip, chunked": post("Transfer-Encoding: gzip, chunked", body="0\r\n\r\n"),
    "chunked twice in one": post("Transfer-Encoding: chunked, chunked", body="0\r\n\r\n"),
    "chunked twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
    "chunked and identity": post("Transfer-Encoding: chunked", "Transfer-Encoding: identity", body="0\r\n\r\n"),
    "identity": post("Transfer-Encoding: identity"),
    "xchunked": post("Transfer-Encoding: xchunked", body="0\r\n\r\n"),
    "quoted": post('Transfer-Encoding: "chunked"', body="0\r\n\r\n"),
    "empty": post("Transfer-Encoding:", body="0\r\n\r\n"),
    "with a parameter": post("Transfer-Encoding: chunked;q=1", body="0\r\n\r\n"),
    "chunked in HTTP/1.0": post("Transfer-Encoding: chunked", body="0\r\n\r\n", version="1.0"),
    "name with a control byte": post("\x0bTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "name with NUL": post("Transfer-Encoding\0: chunked", body="0\r\n\r\n"),
    "name in brackets": post("(Transfer-Encoding): chunked", body="0\r\n\r\n"),
    "hidden behind a bare CR": post("X: y\rTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "hidden behind a bare LF": post("X: y\nTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "a line without a colon": post("Content-Length", body="0\r\n\r\n"),
    "an empty name": post(": 5", body="0\r\n\r\n"),
    "CONNECT with a length": "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT with chunks": "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n",
}


B3_BAD_HEADS = {
    "+5": post("Content-Length: +5", body="hello"),
    "-5": post("Content-Length: -5", body="hello"),
    "0x5": post("Content-Length: 0x5", body="hello"),
    "1_0": post("Content-Length: 1_0", body="hellohello"),
    "Arabic digit": post("Content-Length: \xd9\xa5", body="hello"),
    "5.0": post("Content-Length: 5.0", body="hello"),
    "5 5": post("Content-Length: 5 5", body="hello"),
    "empty length": post("Content-Length:", body="hello"),
    "2 to the 64th and five": post("Content-Length: 18446744073709551621", body="hello"),
    "2 to the 63rd": post("Content-Length: 9223372036854775808", body="hello"),
    "vertical tab": post("Content-Length: \x0b5", body="hello"),
    "obs-fold": post("X: a\r\n b"),
    "obs-fold with a tab": post("Content-Length:\r\n\t5", body="hello"),
    "fold before the first field": "GET http://good.test:{port}/ HTTP/1.1\r\n X: y\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF after the request line": "GET http://good.test:{port}/ HTTP/1.1\nHost: good.test:{port}\r\n\r\n",
    "bare LF everywhere": "GET http://good.test:{port}/ HTTP/1.1\nHost: good.test:{port}\n\n",
    "bare LF at the end": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\n",
    "bare CR in the request line": "GET http://good.test:{port}/\rX HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare CR between fields": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\rX: y\r\n\r\n",
    "NUL in a value": post("X: a\0b"),
    "control byte in a value": post("X: a\x01b"),
    "two spaces": "GET  http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "tab for a space": "GET\thttp://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "space at the end": "GET http://good.test:{port}/ HTTP/1.1 \r\nHost: good.test:{port}\r\n\r\n",
    "space in the target": "GET http://good.test:{port}/a b HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "fragment in the target": "GET http://good.test:{port}/#a HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "space before the method": " GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF before the method": "\nGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF behind an empty line": "\r\n\nGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare CR behind an empty line": "\r\n\rGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
}


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


B8_BAD: Sequence[str] = (
    "GET ftp://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET urn:good.test HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET file:///etc/passwd HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET gopher://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET ws://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET https://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:/good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:///good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:\\\\good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT /good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "CONNECT good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/0.9\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1.2\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/2.0\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1.10\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ http/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ ICE/1.0\r\nHost: good.test:{port}\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "get http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "G\u00c9T http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
)
