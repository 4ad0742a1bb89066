"""A web server on loopback that real clients accept: HTTP/1.1, kept connections, uploads, TLS if given a context."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HELLO = "hello from the server\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has been read whole."""

    method: str
    target: str
    version: str
    headers: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer; Content-Length is added."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


App = Callable[[Request], Reply]


def hello(request: Request) -> Reply:
    """Greet, and answer an upload with its SHA-256, so that a client can tell that all of it has arrived."""
    if request.method in ("PUT", "POST"):
        return Reply(hashlib.sha256(request.body).hexdigest().encode())
    return Reply(HELLO.encode())


class Web:
    """A started server. `requests` are those that it has read, whatever name they came under."""

    def __init__(self, app: App, tls: ssl.SSLContext | None = None, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.requests: list[Request] = []
        self.scheme = "http" if tls is None else "https"

        class Handler(_Handler):
            web = self
            answer = staticmethod(app)

        self._server = _Server(at, Handler)
        self._server.tls = tls
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()  # waits for the connections: whoever made them must have gone first
        self._thread.join(10)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64
    tls: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        conn, peer = super().get_request()
        if self.tls is not None:
            # The handshake happens on the first read, in the connection's own thread.
            conn = self.tls.wrap_socket(conn, server_side=True, do_handshake_on_connect=False)
        return conn, peer

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves early is no news; what it was sent or not shows in the test."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    web: Web
    answer: App

    def _serve(self) -> None:
        request = Request(self.command, self.path, self.request_version, self.headers, self._read_body())
        self.web.requests.append(request)
        reply = self.answer(request)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server looks for

    def _read_body(self) -> bytes:
        if self.headers["Transfer-Encoding"] is None:
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        body = bytearray()
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline() not in (b"\r\n", b""):
            pass  # trailers
        return bytes(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
        """Say nothing: `requests` remembers."""
