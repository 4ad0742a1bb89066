"""The TLS ClientHello, as far as a blind tunnel needs it: which name does the client ask for?

Nothing here terminates TLS. A hello that cannot be read completely is refused, since a tunnel whose
name is unknown is a tunnel to anywhere that answers on that address. A server may ask for a second hello
(HelloRetryRequest), which is in clear text as well. All that follows is encrypted, or is part of TLS 1.2's
handshake, in which no hello is taken.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from exeat.errors import ProtocolError
from exeat.values import field, frozen

HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_SERVER_HELLO: Final = 2
# What a client may send before its second hello: ChangeCipherSpec for the sake of middleboxes, alerts, early data.
_BEFORE_SECOND_HELLO: Final = (0x14, _ALERT, 0x17)
_MAX_RECORD_BYTES: Final = 16 * 1024 + 256
# SHA-256 of "HelloRetryRequest": the random of a ServerHello that is one (RFC 8446 section 4.1.3).
RETRY_RANDOM: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM: Final = slice(6, 38)  # of a ServerHello: behind its type, length and version
_WHOLE_SIZE: Final = _RANDOM.stop.to_bytes(2)  # of a record with all of that in it
_WHOLE_HELLO: Final = 5 + _RANDOM.stop
# Post-quantum key shares make hellos of about 2 KB; 16 KB is one full record.
MAX_HELLO_BYTES: Final = 16 * 1024
# A hello is read from its start each time bytes arrive, so its records are what bounds the work. Clients send one.
MAX_HELLO_RECORDS: Final = 64
_SERVER_NAME: Final = 0
_EXTENSION: Final = Struct(">HH")


@frozen
class ClientHello:
    """What a hello says in clear text. `server_name` is raw: canonicalising it is the policy's work."""

    server_name: str | None
    size: int = field(default=0, compare=False)  # in bytes, with its records


def parse_client_hello(data: bytes) -> ClientHello | None:
    """The hello at the start of `data`, or None while it is incomplete. Raises ProtocolError when it cannot be one."""
    size = len(data)
    if size >= 9 and data[:2] == b"\x16\x03" and data[5] == 1:
        # All of it in one record and in one piece, as nearly all are: without the copies below, at half the cost.
        needed = int.from_bytes(data[6:9]) + 4
        if int.from_bytes(data[3:5]) == needed <= min(size - 5, MAX_HELLO_BYTES):
            return ClientHello(_parse_body(data[9 : 5 + needed]), 5 + needed)
    message = bytearray()
    position = 0
    for _ in range(MAX_HELLO_RECORDS):
        if len(data) - position < 5:
            _check_partial_record(data[position:], first=position == 0)
            return None
        if data[position] != HANDSHAKE or data[position + 1] != 3:
            raise ProtocolError("not a TLS ClientHello")
        length = int.from_bytes(data[position + 3 : position + 5])
        if not 0 < length <= MAX_HELLO_BYTES:
            raise ProtocolError("bad TLS record length")
        fragment = data[position + 5 : position + 5 + length]
        message += fragment
        if message and message[0] != 1:
            raise ProtocolError("not a TLS ClientHello")
        if len(message) >= 4:
            needed = 4 + int.from_bytes(message[1:4])
            if needed > MAX_HELLO_BYTES:
                raise ProtocolError("oversized TLS ClientHello")
            if len(message) >= needed:
                # Judged by the length the record claims: by what has arrived, the verdict would depend on the timing.
                if len(message) > needed or len(fragment) < length:
                    raise ProtocolError("data after the TLS ClientHello in its record")
                return ClientHello(_parse_body(bytes(message[4:needed])), position + 5 + length)
        if len(fragment) < length:
            return None
        position += 5 + length
    raise ProtocolError("TLS ClientHello in too many records")


def asks_for_second_hello(data: bytes) -> bool | None:
    """Is this, a server's answer to a hello, a HelloRetryRequest? None: too early to tell."""
    if len(data) >= _WHOLE_HELLO and data[:2] == b"\x16\x03" and data[5] == _SERVER_HELLO and data[3:5] >= _WHOLE_SIZE:
        return data[5 + _RANDOM.start : _WHOLE_HELLO] == RETRY_RANDOM  # in one piece, as nearly all are
    message = bytearray()
    position = 0
    for _ in range(MAX_HELLO_RECORDS):
        head = data[position : position + 5]
        if head[:1] not in (b"", b"\x16", b"\x15") or head[1:2] not in (b"", b"\x03"):
            return False  # no handshake comes of this
        if len(head) < 5:
            return None
        length = int.from_bytes(head[3:5])
        fragment = data[position + 5 : position + 5 + length]
        if head[0] == HANDSHAKE:
            message += fragment
            if message and message[0] != _SERVER_HELLO:
                return False
            if len(message) >= _RANDOM.stop:
                return message[_RANDOM] == RETRY_RANDOM
        elif length != 2 or fragment[:1] not in (b"", b"\x01"):
            return False  # an alert that ends it; after a warning the hello may still come
        if len(fragment) < length:
            return None
        position += 5 + length
    return True  # no server takes so long to say what it wants: then whatever the client sends next is judged


def find_second_hello(data: bytes) -> tuple[int, ClientHello | None]:
    """What a client sends when it has been asked again: how many bytes come before its hello, and that, once whole.

    Raises ProtocolError when there is something else.
    """
    position = 0
    while len(data) - position >= 5 and data[position] in _BEFORE_SECOND_HELLO:
        length = int.from_bytes(data[position + 3 : position + 5])
        if length > _MAX_RECORD_BYTES:
            raise ProtocolError("bad TLS record length")
        if position + 5 + length > len(data):
            return position, None
        position += 5 + length
    rest = data[position:]
    if rest and rest[0] in _BEFORE_SECOND_HELLO:
        return position, None
    return position, parse_client_hello(rest)


def _check_partial_record(partial: bytes, *, first: bool) -> None:
    """Refuse early what can no longer become a handshake record: an SSH banner never fills one."""
    if (partial[:1] not in (b"", b"\x16")) or (partial[1:2] not in (b"", b"\x03")):
        raise ProtocolError("not TLS" if first else "not a TLS ClientHello")


class _Reader:
    """A cursor over bytes that refuses to read past the end."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ProtocolError("truncated TLS ClientHello")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def vector(self, length_bytes: int) -> bytes:
        return self.take(int.from_bytes(self.take(length_bytes)))

    @property
    def empty(self) -> bool:
        return self._position == len(self._data)


def _parse_body(body: bytes) -> str | None:
    """The server name of a hello."""
    size = len(body)
    try:  # by plain offsets, at a third of what a cursor costs
        position = 2 + 32  # legacy_version, random
        position += 1 + body[position]  # session id
        position += 2 + int.from_bytes(body[position : position + 2]) if position + 2 <= size else size  # cipher suites
        position += 1 + body[position]  # compression methods
    except IndexError:
        raise ProtocolError("truncated TLS ClientHello") from None
    if position == size:
        return None
    start = position + 2
    end = start + int.from_bytes(body[position:start])
    if start > size or end > size:
        raise ProtocolError("truncated TLS ClientHello")
    if end != size:
        raise ProtocolError("data after the TLS extensions")
    return _find_server_name(body[start:])


def _find_server_name(extensions: bytes) -> str | None:
    """Walk all extensions: 12 to 18 of them, so by plain offsets, at a third of what the cursor costs."""
    server_name: str | None = None
    seen: set[int] = set()
    position, size = 0, len(extensions)
    while position < size:
        if position + 4 > size:
            raise ProtocolError("truncated TLS ClientHello")
        kind, length = _EXTENSION.unpack_from(extensions, position)
        start = position + 4
        position = start + length
        if position > size:
            raise ProtocolError("truncated TLS ClientHello")
        if kind in seen:
            # RFC 8446 section 4.2 forbids it; two server names are how two readers come to differ.
            raise ProtocolError("repeated TLS extension")
        seen.add(kind)
        if kind == _SERVER_NAME:
            server_name = _parse_server_name(extensions[start:position])
    return server_name


def _parse_server_name(content: bytes) -> str:
    outer = _Reader(content)
    entries = _Reader(outer.vector(2))
    kind = entries.take(1)
    name = entries.vector(2)
    if kind != b"\0" or not entries.empty or not outer.empty or not name:
        raise ProtocolError("malformed server name in the TLS ClientHello")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise ProtocolError("malformed server name in the TLS ClientHello") from None
