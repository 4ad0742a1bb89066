"""SOCKS5 messages (RFC 1928, RFC 1929): CONNECT with a name or an address, no-auth or user/password.

Each `parse_*` takes what has arrived so far and returns `(value, bytes used)`, or None while incomplete.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Final

from exeat.errors import ProtocolError
from exeat.values import frozen

VERSION: Final = 5
NO_AUTH: Final = 0
USER_PASSWORD: Final = 2
NO_ACCEPTABLE_METHOD: Final = b"\x05\xff"
_CONNECT: Final = 1


class Reply(IntEnum):
    """RFC 1928 section 6."""

    SUCCEEDED = 0
    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    HOST_UNREACHABLE = 4
    REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_TYPE_NOT_SUPPORTED = 8


class SocksError(ProtocolError):
    """A malformed or unsupported request, with the code to answer."""

    def __init__(self, public: str, reply: Reply = Reply.GENERAL_FAILURE) -> None:
        super().__init__(public)
        self.reply = reply


@frozen
class SocksRequest:
    """Where the client wants to go. `host` is raw text: canonicalising it is the policy's work."""

    host: str
    port: int


def parse_greeting(data: bytes) -> tuple[frozenset[int], int] | None:
    """The authentication methods that the client offers."""
    if data[:1] not in (b"", b"\x05"):
        raise SocksError("not SOCKS5")
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    return frozenset(data[2 : 2 + data[1]]), 2 + data[1]


def parse_credentials(data: bytes) -> tuple[tuple[bytes, bytes], int] | None:
    """User and password (RFC 1929)."""
    if data[:1] not in (b"", b"\x01"):
        raise SocksError("malformed SOCKS5 credentials")
    if len(data) < 2 or len(data) < 3 + data[1]:
        return None
    user_end = 2 + data[1]
    password_end = user_end + 1 + data[user_end]
    if len(data) < password_end:
        return None
    return (data[2:user_end], data[user_end + 1 : password_end]), password_end


def parse_request(data: bytes) -> tuple[SocksRequest, int] | None:
    """A CONNECT request; every other command is refused."""
    if data[:1] not in (b"", b"\x05"):
        raise SocksError("malformed SOCKS5 request")
    if len(data) < 5:
        return None
    if data[2] != 0:
        raise SocksError("malformed SOCKS5 request")
    kind = data[3]
    if kind == 1:
        start, size = 4, 4
    elif kind == 3:
        start, size = 5, data[4]
    elif kind == 4:
        start, size = 4, 16
    else:
        raise SocksError("unknown SOCKS5 address type", Reply.ADDRESS_TYPE_NOT_SUPPORTED)
    end = start + size
    if len(data) < end + 2:
        return None
    if data[1] != _CONNECT:
        raise SocksError("only CONNECT is supported", Reply.COMMAND_NOT_SUPPORTED)
    raw = data[start:end]
    if kind == 3:
        try:
            host = raw.decode("ascii")
        except UnicodeDecodeError:
            raise SocksError("malformed host name") from None
    else:
        host = f"[{ipaddress.IPv6Address(raw)}]" if kind == 4 else str(ipaddress.IPv4Address(raw))
    return SocksRequest(host, int.from_bytes(data[end : end + 2])), end + 2


def encode_reply(reply: Reply) -> bytes:
    """A reply with no bound address: where we connect from is no one's business inside."""
    return bytes((VERSION, reply, 0, 1, 0, 0, 0, 0, 0, 0))
