"""A server that asks for a second ClientHello, and a client that sends two."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tests.support.clients.hello import client_hello
from tests.support.clients.talk import read_exactly
from tests.support.origins.raw import RawOrigin
from tests.support.origins.tls_echo import make_certificates

X25519 = b"\x00\x1d"


GROUPS = (10, b"\x00\x02" + X25519)


SIGNATURES = (13, b"\x00\x0a\x04\x03\x08\x04\x04\x01\x08\x09\x08\x05")


NO_KEY = (51, b"\x00\x00")


A_KEY = (51, b"\x00\x24" + X25519 + b"\x00\x20" + b"\x09" + bytes(31))


RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def hello(name: bytes | None, *, key: bool) -> bytes:
    return client_hello(name, more=[GROUPS, SIGNATURES, A_KEY if key else NO_KEY])


class AskingServer:
    """Shakes hands with whoever comes, and notes every name that it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.context = make_certificates(folder, "good.test", "evil.test").server_context()
        self.context.sni_callback = self._note
        self.asked: list[str | None] = []

    def _note(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        self.asked.append(name)

    def __call__(self, conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.context.wrap_bio(incoming, outgoing, server_side=True)
        while data := origin.read(conn, raw):
            incoming.write(data)
            try:
                server.do_handshake()
                conn.sendall(outgoing.read() + server.read(1) if server.pending() else outgoing.read())
            except ssl.SSLWantReadError:
                conn.sendall(outgoing.read())
            except ssl.SSLError:
                conn.sendall(outgoing.read())
                return


def read_record(conn: socket.socket) -> tuple[int, bytes]:
    head = read_exactly(conn, 5)
    if len(head) < 5:
        return -1, head
    return head[0], read_exactly(conn, int.from_bytes(head[3:5]))


def read_server_hello(conn: socket.socket) -> bytes:
    """The random of the next ServerHello; empty if there is none."""
    while True:
        kind, content = read_record(conn)
        if kind == 0x14:
            continue
        return content[6:38] if kind == 0x16 and content[:1] == b"\x02" else b""


def shake(conn: socket.socket, first: bytes | None, second: bytes | None, between: bytes = b"") -> bytes:
    """Two hellos, the second asked for by the server. Returns the random of the server's last word."""
    conn.sendall(hello(first, key=False))
    assert read_server_hello(conn) == RETRY_RANDOM, "the server was to ask again"
    conn.sendall(between + hello(second, key=True))
    return read_server_hello(conn)
