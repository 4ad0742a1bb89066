"""HTTP responses and SOCKS5, as a client reads and writes them by hand."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    status: int
    head: bytes
    body: bytes


def read_reply(conn: socket.socket) -> Reply:
    """One HTTP response with a counted body, which is what the gateway and the server here send.

    The head is read byte by byte, so that the next response stays in the socket.
    """
    received = bytearray()
    while not received.endswith(b"\r\n\r\n"):
        data = conn.recv(1)
        assert data, f"no whole response head, only {bytes(received)!r}"
        received += data
    head = bytes(received[:-4])
    assert head.startswith(b"HTTP/1.1 "), head[:100]
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = read_exactly(conn, length)
    assert len(body) == length, "the response body was cut off"
    return Reply(int(head[9:12]), head, body)


def socks_address(host: bytes) -> bytes | None:
    """The packed address if the text is one, in or without brackets."""
    try:
        return ipaddress.ip_address(host.decode("ascii").strip("[]")).packed
    except ValueError:
        return None


def socks_request(host: bytes, port: int, *, as_address: bool = False) -> bytes:
    """The CONNECT request of a SOCKS5 client."""
    packed = socks_address(host) if as_address else None
    if packed is not None:
        return b"\x05\x01\x00" + (b"\x01" if len(packed) == 4 else b"\x04") + packed + port.to_bytes(2)
    return b"\x05\x01\x00\x03" + bytes([len(host)]) + host + port.to_bytes(2)


def read_exactly(conn: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = conn.recv(size - len(received))
        if not data:
            break
        received += data
    return received


def socks_dial(conn: socket.socket, host: bytes, port: int, *, as_address: bool = False) -> int:
    """Greet and ask; returns the reply code."""
    conn.sendall(b"\x05\x01\x00")
    assert read_exactly(conn, 2) == b"\x05\x00"
    conn.sendall(socks_request(host, port, as_address=as_address))
    reply = read_exactly(conn, 10)
    assert len(reply) == 10, f"no whole SOCKS reply, only {reply!r}"
    assert reply[0] == 5
    return reply[1]


def connect_dial(conn: socket.socket, authority: bytes) -> Reply:
    conn.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority))
    return read_reply(conn)
