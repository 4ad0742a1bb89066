"""Servers on loopback that do exactly what a test tells them, and remember what they were sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

Handler = Callable[[socket.socket, "Origin"], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Origin:
    """Accepts connections and runs `handler` on each, in a thread. `heads` are the request heads it has read."""

    def __init__(self, handler: Handler | None = None, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._handler = handler or answer_all
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        self._listener.listen(256)
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        try:
            self._handler(conn, self)
        except OSError:
            pass
        finally:
            conn.close()

    def read_head(self, conn: socket.socket, buffer: bytearray) -> bytes | None:
        """The next request head; what follows it stays in `buffer`."""
        while b"\r\n\r\n" not in buffer:
            data = conn.recv(65536)
            if not data:
                return None
            buffer += data
        end = buffer.index(b"\r\n\r\n") + 4
        head = bytes(buffer[:end])
        del buffer[:end]
        self.heads.append(head)
        return head

    def close(self) -> None:
        # shutdown wakes the accepting thread; close alone would leave it waiting.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        for conn in self._open:
            conn.close()


def answer_all(conn: socket.socket, origin: Origin) -> None:
    """Answer every request, bodies not expected, with a small 200, keeping the connection."""
    buffer = bytearray()
    while origin.read_head(conn, buffer) is not None:
        conn.sendall(OK)


def answering(response: bytes) -> Handler:
    """Answer the first request with these bytes, then close."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(response)

    return handle


def echo(conn: socket.socket, origin: Origin) -> None:
    """Send back whatever comes."""
    while data := conn.recv(65536):
        conn.sendall(data)
    conn.shutdown(socket.SHUT_WR)


GREETING = b"hello from outside"


class Greeter:
    """Says hello to everybody who comes, and counts them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.visitors = 0
        listener.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                conn, _ = self._listener.accept()
                self.visitors += 1
                with conn:
                    conn.sendall(GREETING)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
