"""HTTP/1 heads: llhttp reads them, we judge them.

A head is handed over whole, up to and including its empty line, so that nothing here depends on how
the bytes arrived. llhttp gives the grammar; on top of it every ambiguity that two HTTP readers could
settle differently is refused (request smuggling, RFC 9112 section 11.2), never repaired. The first line
and all framing that is sent on are written anew; of the original only judged lines are passed along.
"""

from __future__ import annotations

import re
from typing import Final

from exeat.errors import ProtocolError
from exeat.wire.fields import Fields, KnownFields, read_fields
from exeat.wire.target import encode_target

# llhttp also takes RTSP/ and ICE/, several spaces, an empty line in front, and controls in a reason.
# The registered methods that clients use. One that we do not know may have a framing that we do not know.
_METHODS: Final = frozenset(
    b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK SEARCH "
    b"REPORT MKACTIVITY CHECKOUT MERGE BIND REBIND UNBIND ACL LINK UNLINK MKCALENDAR M-SEARCH NOTIFY SUBSCRIBE "
    b"UNSUBSCRIBE PURGE QUERY".split()
)
_FIRST_LINE: Final = re.compile(rb"([A-Z-]++) ([!-~\x80-\xff]++) HTTP/1\.([01])(?=\r\n)")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})((?: [\t\x20-\x7e\x80-\xff]*+)?)(?=\r\n)")
_WEBSOCKET_KEY: Final = re.compile(rb"[+/0-9A-Za-z]{22}==")  # 16 bytes in base64 (RFC 6455 section 4.1)


class RequestHead(Fields):
    """A request head that has one meaning. `passed` are the header lines to send on, Host and framing excluded."""

    websocket_key: bytes | None = None  # set when this is a well-formed WebSocket upgrade

    def __init__(self, method: bytes, target: bytes, minor: int, fields: Fields) -> None:
        self.__dict__.update(fields.__dict__)
        self.method = method
        self.target = target
        self.minor = minor

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)

    @property
    def keep_alive(self) -> bool:
        if self.minor == 0 and not self.connection:
            return self.proxy_connection == b"keep-alive"
        return self.persistent

    @property
    def expect_continue(self) -> bool:
        return self.expect is not None and self.minor == 1


class ResponseHead(Fields):
    """A response head that has one meaning.

    `length` None with `chunked` False: the body ends with the connection.
    """

    websocket_accept: bytes | None = None

    def __init__(self, status: int, reason: bytes, minor: int, fields: Fields) -> None:
        self.__dict__.update(fields.__dict__)
        self.status = status
        self.reason = reason
        self.minor = minor

    @property
    def keep_alive(self) -> bool:
        return self.persistent


def parse_request_head(head: bytes, *, max_headers: int = 128, known: KnownFields | None = None) -> RequestHead:
    """Read one request head. Raises ProtocolError; never gives a head that could be read two ways.

    `known`: where lines that were read before are kept.
    """
    first_line = check_request_line(head)
    read = read_fields if known is None else known.read
    fields = read(head[first_line.end() :], max_headers, response=False, keep_length=False)
    method, target, minor = first_line.groups()
    if not target.isascii():
        target = encode_target(target)
    request = RequestHead(method, target, 1 if minor == b"1" else 0, fields)
    if request.chunked and request.minor == 0:
        raise ProtocolError("Transfer-Encoding in HTTP/1.0")
    if request.expect is not None and request.expect != b"100-continue":
        raise ProtocolError("unknown expectation", status=417)
    if request.upgrade and _is_websocket(request):
        request.websocket_key = request.key
    if request.host is None and request.minor == 1:
        raise ProtocolError("no Host in an HTTP/1.1 request")
    if method == b"TRACE":
        # TRACE echoes what it is sent, headers that we add included (RFC 9110 section 9.3.8).
        raise ProtocolError("TRACE is not supported", status=405)
    return request


def check_request_line(head: bytes) -> re.Match[bytes]:
    """Method, target and minor version. Needs the line's end, and nothing behind it."""
    first_line = _FIRST_LINE.match(head)
    if first_line is None or first_line[1] not in _METHODS:
        raise ProtocolError("malformed HTTP request")
    return first_line


def _is_websocket(request: RequestHead) -> bool:
    return (
        b"upgrade" in request.connection
        and request.upgrade == b"websocket"
        and request.key is not None
        and _WEBSOCKET_KEY.fullmatch(request.key) is not None
        and request.method == b"GET"
        and request.minor == 1
        and not request.has_body
    )


def parse_response_head(
    head: bytes, *, to_head: bool = False, max_headers: int = 256, known: KnownFields | None = None, ours: bool = False
) -> ResponseHead:
    """Read one response head. `to_head`: it answers a HEAD request, so no body follows whatever it says.

    `known`: where lines that were read before are kept. `ours`: the gateway has written it, Proxy-Status included.
    """
    try:
        return _parse_response_head(head, to_head, max_headers, known, ours)
    except ProtocolError as error:
        raise ProtocolError(f"bad response: {error.public}", status=502, detail=error.detail) from None


def _parse_response_head(
    head: bytes, to_head: bool, max_headers: int, known: KnownFields | None, ours: bool
) -> ResponseHead:
    status_line = _STATUS_LINE.match(head)
    if status_line is None:
        raise ProtocolError("malformed HTTP response")
    minor, code, reason = status_line.groups()
    status = int(code)
    # RFC 9110 section 8.6: in 1xx and 204 a length announces a body that cannot come.
    keep_length = status >= 200 and status != 204
    block = head[status_line.end() :]
    if known is not None and not ours:
        fields = known.read(block, max_headers, response=True, keep_length=keep_length)
    else:
        fields = read_fields(block, max_headers, response=True, keep_length=keep_length, keep_proxy_status=ours)
    response = ResponseHead(status, reason[1:], 1 if minor == b"1" else 0, fields)
    if response.chunked and response.minor == 0:
        raise ProtocolError("Transfer-Encoding in HTTP/1.0")
    if status < 200 or status in (204, 304) or to_head:
        response.length = 0
        response.chunked = False
    if status == 101 and not (response.upgrade and b"upgrade" in response.connection):
        raise ProtocolError("switch of protocols to none")
    if response.upgrade == b"websocket" and b"upgrade" in response.connection:
        response.websocket_accept = response.accept
    return response


def encode_head(first_line: bytes, passed: bytes, extra: bytes = b"") -> bytes:
    """A head to send on: lines that were judged, and lines of our own, each of these ending in CRLF."""
    return b"%b%b\r\n%b\r\n" % (first_line, passed, extra)
