"""TLS ClientHello messages written by hand, so that a test can put any bytes into the server name."""

from __future__ import annotations


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def server_name(name: bytes) -> bytes:
    """The content of a server_name extension with one host name."""
    return vector(2, b"\0" + vector(2, name))


def hello_message(extensions: list[tuple[int, bytes]]) -> bytes:
    """The handshake message, without the record around it."""
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, b"".join(kind.to_bytes(2) + vector(2, content) for kind, content in extensions))
    return b"\x01" + vector(3, body)


def records(message: bytes, size: int = 16_384) -> bytes:
    """A handshake message in records of at most `size` bytes."""
    pieces = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def client_hello(name: bytes | None, *, more: list[tuple[int, bytes]] | None = None) -> bytes:
    """A whole hello in one record; no server name at all for None."""
    names = [] if name is None else [(0, server_name(name))]
    versions = (43, vector(1, b"\x03\x04"))
    return records(hello_message([*names, versions, *(more or [])]))
