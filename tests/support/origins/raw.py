"""A server that keeps every byte it was sent, and speaks just enough to prove that it was reached."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from tests.support.origins.plain import OK

RawHandler = Callable[[socket.socket, "RawOrigin", bytearray], None]
PING, PONG = b"PING\n", b"PONG\n"
TLS_SEEN = b"hello seen\n"
_TIMEOUT_S = 60


class RawOrigin:
    """`raw` holds the bytes of each connection, in the order in which the connections came.

    A handler gets the socket, this object and the connection's bytes; it must read through `read`.
    """

    def __init__(self, handler: RawHandler | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.raw: list[bytearray] = []
        self.closed = threading.Semaphore(0)  # released once for each connection that has ended
        self._handler = handler or answer_anything
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen(256)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self.raw)

    @property
    def received(self) -> int:
        """Bytes received so far, over all connections."""
        return sum(map(len, self.raw))

    @property
    def everything(self) -> bytes:
        return b"".join(self.raw)

    def read(self, conn: socket.socket, raw: bytearray) -> bytes:
        data = conn.recv(65536)
        raw += data
        return data

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            conn.settimeout(_TIMEOUT_S)
            raw = bytearray()
            self.raw.append(raw)
            self._open.append(conn)
            threading.Thread(target=self._serve, args=(conn, raw), daemon=True).start()

    def _serve(self, conn: socket.socket, raw: bytearray) -> None:
        try:
            self._handler(conn, self, raw)
        except OSError:
            pass
        finally:
            conn.close()
            self.closed.release()

    def close(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        for conn in self._open:
            try:
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> RawOrigin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer_anything(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    """PING gets PONG, the start of a TLS handshake gets a line of text, every HTTP head gets a small 200."""
    answered = 0
    while origin.read(conn, raw):
        if raw[:1] == b"\x16":
            if len(raw) >= 5 and len(raw) >= 5 + int.from_bytes(raw[3:5]):
                conn.sendall(TLS_SEEN)
                return
        elif raw.startswith(PING):
            conn.sendall(PONG)
            return
        else:
            heads = raw.count(b"\r\n\r\n")
            conn.sendall(OK * (heads - answered))
            answered = heads


def keep_silent(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    """Read until the end and never answer."""
    while origin.read(conn, raw):
        pass


def speak_first(banner: bytes) -> RawHandler:
    """Send a banner at once, then echo."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        conn.sendall(banner)
        while data := origin.read(conn, raw):
            conn.sendall(data)

    return handle


def receive_body(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    """Answer each request once its body, counted or chunked, is whole."""
    at = 0
    while origin.read(conn, raw):
        while (end := raw.find(b"\r\n\r\n", at)) >= 0:
            head = bytes(raw[at : end + 4]).lower()
            after = end + 4
            if b"transfer-encoding: chunked" in head:
                last = raw.find(b"0\r\n\r\n", after)
                if last < 0:
                    break
                after = last + 5
            elif b"content-length: " in head:
                after += int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if len(raw) < after:
                    break
            at = after
            conn.sendall(OK)


def read_head(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> bytes:
    """The next head on a connection, which is then forgotten."""
    while b"\r\n\r\n" not in raw:
        if not origin.read(conn, raw):
            return b""
    head = bytes(raw).partition(b"\r\n\r\n")[0]
    raw.clear()
    return head


def receive_all(conn: socket.socket) -> bytes:
    """Until the end, orderly or not."""
    received = bytearray()
    conn.settimeout(2)
    try:
        while data := conn.recv(65536):
            received += data
    except OSError:
        pass
    return bytes(received)
