"""An engine that says what a test wants it to, on a Unix socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Reply = Callable[[bytes], bytes]


def answer(status: int, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data


@contextmanager
def serving(path: Path, reply: Reply) -> Iterator[list[bytes]]:
    """`reply` makes an answer of a whole request, in a thread of its own. The list has all requests."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection:
            request = _read(connection)
            if request:
                requests.append(request)
                with suppress(BrokenPipeError):  # the client has left
                    connection.sendall(reply(request))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _read(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    if b"Transfer-Encoding: chunked" in head:
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65_536)
        return head + b"\r\n\r\n" + body
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body
