"""A request as it is sent on, and how one can come back unread."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from exeat.wire.http1 import RequestHead, encode_head

_WEBSOCKET_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
# Of other methods many servers do not read a body, and take it for the next request on the connection.
_WITH_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class NotProcessed(ConnectionResetError):  # noqa: N818 - named for what happened
    """The server says that it has not looked at the request, so it may be sent again (RFC 9113 section 8.7)."""


def is_repeatable(head: RequestHead) -> bool:
    """May the request be sent again if the connection broke before any answer? Its body would be gone."""
    return head.method in _IDEMPOTENT and not head.has_body


def is_body_read(head: RequestHead) -> bool:
    """Does every server read the body of such a request, if there is one? (RFC 9110 section 9.3)"""
    return head.method in _WITH_BODY


def encode_request(
    head: RequestHead,
    path: bytes,
    authority: bytes,
    passed: bytes,
    length: int | None,
    *,
    chunked: bool,
    expect: bool,
    close: bool = False,
) -> bytes:
    """`close`: the server is not to take what follows for another request."""
    extra = b""
    if chunked:
        extra = b"Transfer-Encoding: chunked\r\n"
    elif length is not None:
        extra = b"Content-Length: %d\r\n" % length
    if expect:
        extra += b"Expect: 100-continue\r\n"
    if head.websocket_key is not None:
        extra += b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    elif head.te_trailers:
        extra += b"Connection: %bTE\r\nTE: trailers\r\n" % (b"close, " if close else b"")
    elif close:
        extra += b"Connection: close\r\n"
    return encode_head(b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, path, authority), passed, extra)


def websocket_accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest())
