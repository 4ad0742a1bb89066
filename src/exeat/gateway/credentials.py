"""Credentials of a gateway's clients, and the answer to wrong ones. Never shows a value."""

from __future__ import annotations

import hmac
from base64 import b64decode
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from exeat.gateway.refusal import NO_CREDENTIALS, UNKNOWN_CLIENT, Refusal
from exeat.values import frozen

if TYPE_CHECKING:
    from exeat.gateway.flow.channel import Channel
    from exeat.gateway.record.records import AccessRecord


class Login(Protocol):
    """What the doors ask. A header is that of Proxy-Authorization."""

    def match(self, user: bytes, password: bytes) -> bool: ...
    def match_basic(self, header: bytes | None) -> bool: ...
    def refuse(self, record: AccessRecord, client: Channel) -> Refusal:
        """Put on record that it did not match; what an HTTP client is told."""
        ...


@frozen(repr=False)
class Credentials:
    """A name and a password. Compared in constant time."""

    user: str
    password: str

    def match(self, user: bytes, password: bytes) -> bool:
        given = user + b"\0" + password
        return hmac.compare_digest(given, self.user.encode() + b"\0" + self.password.encode())

    def match_basic(self, header: bytes | None) -> bool:
        given = read_basic(header)
        return given is not None and self.match(*given)

    def refuse(self, record: AccessRecord, client: Channel) -> Refusal:
        record.lacks_credentials()
        return NO_CREDENTIALS


@frozen(repr=False)
class ClientCredentials:
    """Of one client among several: its name, and the SHA-256 of its password, which is long and random."""

    user: str
    digest: bytes

    def match(self, user: bytes, password: bytes) -> bool:
        given = user + b"\0" + sha256(password).digest()
        return hmac.compare_digest(given, self.user.encode() + b"\0" + self.digest)

    def match_basic(self, header: bytes | None) -> bool:
        given = read_basic(header)
        return given is not None and self.match(*given)

    def refuse(self, record: AccessRecord, client: Channel) -> Refusal:
        record.lacks_credentials(f"from {client.peer}")
        return NO_CREDENTIALS


class Strangers:
    """For those whose address is no client's. Whatever they say, it is not enough."""

    def match(self, user: bytes, password: bytes) -> bool:
        return False

    def match_basic(self, header: bytes | None) -> bool:
        return False

    def refuse(self, record: AccessRecord, client: Channel) -> Refusal:
        record.is_of_stranger(client.peer)
        return UNKNOWN_CLIENT


def read_basic(header: bytes | None) -> tuple[bytes, bytes] | None:
    """Name and password of a Proxy-Authorization header; None if it has none that can be read."""
    if header is None or header[:6].lower() != b"basic ":
        return None
    try:
        user, _, password = b64decode(header[6:].strip(b" "), validate=True).partition(b":")
    except ValueError:
        return None
    return user, password
