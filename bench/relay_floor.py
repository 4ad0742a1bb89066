"""What an intercepted download costs at the least: relays that do nothing but move its bytes.

    python -m bench.relay_floor [rounds]

Each ends the client's TLS, opens TLS to the origin, and moves what comes, unread. CPU seconds for a gigabyte, of the
relay alone:

- *plain*: without TLS on either side, a read and a write for each buffer.
- *sockets*: OpenSSL reads and writes the sockets itself, record by record.
- *memory*: through `ssl.MemoryBIO` as in the gateway, so that one read and one write are for many records.
- *searched*: the same, and the plain bytes are searched for one value as in the gateway.
"""

import os
import socket
import ssl
import statistics
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Final

from bench import load
from bench.cpu import cpu_s
from bench.guarded import HOST, MIXED_PATH, PORT, VALUE, authority_path, write_download
from bench.origin import PLAIN_PORT, Site, open_origin
from bench.process import WORK, raise_descriptor_limit
from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.stream.search import Patterns

BYTES: Final = 200_000_000
SECONDS: Final = 2.0
CIPHER_BYTES: Final = 112 * 1024  # as in the gateway
RECORD_BYTES: Final = 16 * 1024
WAYS: Final = ("plain", "sockets", "memory", "searched")


class _Memory:
    """One side's TLS, through memory."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, None if is_server else HOST)
        self._cipher, self._plain = (memoryview(bytearray(CIPHER_BYTES)) for _ in range(2))
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                self._incoming.write(sock.recv(CIPHER_BYTES))
            else:
                break
        sock.sendall(self._outgoing.read())

    def recv(self) -> bytes:
        """What one read of the socket brings; nothing at its end."""
        size = 0
        while not size:
            if not self._incoming.pending:
                got = self._sock.recv_into(self._cipher)
                if not got:
                    return b""
                self._incoming.write(self._cipher[:got])
            try:
                while self._incoming.pending and size < CIPHER_BYTES:
                    size += int(self._tls.read(RECORD_BYTES, self._plain[size:]))
            except ssl.SSLWantReadError:
                self._incoming.write(self._sock.recv(CIPHER_BYTES))
        return bytes(self._plain[:size])

    def sendall(self, data: bytes) -> None:
        self._tls.write(data)
        self._sock.sendall(self._outgoing.read())


def _wrapped(way: str, sock: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> socket.socket | _Memory:
    if way == "plain":
        return sock
    if way == "sockets":
        return context.wrap_socket(sock, server_side=is_server, server_hostname=None if is_server else HOST)
    return _Memory(sock, context, is_server=is_server)


def _reader(side: socket.socket | _Memory) -> Callable[[], bytes | memoryview]:
    if isinstance(side, _Memory):
        return side.recv
    buffer = memoryview(bytearray(CIPHER_BYTES))
    read = side.recv_into
    return lambda: buffer[: read(buffer)]


def relay(way: str, listener: socket.socket) -> None:
    """Serve one connection: a request, its response, and so on."""
    server, upstream = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(authority_path()))
    server.load_cert_chain(WORK / "origin" / "guarded.pem")
    client = _wrapped(way, listener.accept()[0], server, is_server=True)
    port = PLAIN_PORT if way == "plain" else PORT
    origin = _wrapped(way, socket.create_connection(("127.0.0.1", port)), upstream, is_server=False)
    patterns = Patterns(reflected_forms(VALUE.encode()))
    ask, answer = _reader(client), _reader(origin)
    while request := ask():
        origin.sendall(bytes(request))
        left = -1
        while left:
            data = answer()
            if left < 0:
                head = bytes(data).partition(b"\r\n\r\n")[0]
                left = len(head) + 4 + BYTES
            left -= len(data)
            if way == "searched" and patterns.may_match(bytes(data)):
                raise SystemExit("the value is in the file")
            client.sendall(bytes(data) if isinstance(client, _Memory) else data)  # type: ignore[arg-type]


def measure(way: str) -> float:
    """CPU seconds for a gigabyte."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        pid = os.fork()
        if pid == 0:
            try:
                relay(way, listener)
            except (OSError, KeyboardInterrupt):
                pass
            os._exit(0)
        port = listener.getsockname()[1]
        mode = "direct" if way == "plain" else "direct-tls"
        what = load.Load(mode, 1, SECONDS, 0, 0.01, MIXED_PATH, BYTES, VALUE)
        place = load.Way(f"127.0.0.1:{port}", Site(HOST, PLAIN_PORT, PORT))
        try:
            sample = load.measure(what, place, lambda _: cpu_s(pid))
        finally:
            os.kill(pid, 15)
            os.waitpid(pid, 0)
    return sample.used / sample.bytes * 1e9


def main(rounds: int) -> None:
    raise_descriptor_limit()
    WORK.mkdir(exist_ok=True)
    load.build()
    with open_origin(1_000_000):
        write_download(BYTES)
        seen: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                seen[way].append(measure(way))
    for way, costs in seen.items():
        print(f"{way:9} {statistics.median(costs):.2f} CPU s per GB ({min(costs):.2f} to {max(costs):.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
