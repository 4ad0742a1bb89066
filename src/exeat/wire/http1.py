"""HTTP/1 heads: llhttp reads them, we judge them.

A head is handed over whole, up to and including its empty line, so that nothing here depends on how
the bytes arrived. llhttp gives the grammar; on top of it every ambiguity that two HTTP readers could
settle differently is refused (request smuggling, RFC 9112 section 11.2), never repaired. What is sent
on is built anew from the parsed fields; no byte of the original framing is passed along.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from exeat.errors import ProtocolError

Headers = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, plus what proxies of the nineties left behind. Anything `proxy-*` goes too.
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
# Fields whose meaning this module settles; every other field is passed on untouched.
_JUDGED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
# `Connection: authorization` would make a proxy drop the credential, or the framing, on the way.
_NOT_DROPPABLE: Final = frozenset(
    (
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"cookie",
        b"expect",
        b"host",
        b"range",
        b"set-cookie",
        b"transfer-encoding",
    )
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# llhttp also takes RTSP/ and ICE/, several spaces, an empty line in front, and controls in a reason.
_FIRST_LINE: Final = re.compile(rb"[A-Z-]++ [!-~]++ HTTP/1\.([01])\r\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) [1-5][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*+)?\r\n")
_WEBSOCKET_KEY: Final = re.compile(rb"[+/0-9A-Za-z]{22}==")  # 16 bytes in base64 (RFC 6455 section 4.1)


class RequestHead:
    """A request head that has one meaning. `headers` is what may be sent on, Host excluded."""

    __slots__ = (
        "authorization",
        "chunked",
        "expect_continue",
        "headers",
        "host",
        "keep_alive",
        "length",
        "method",
        "minor",
        "target",
        "te_trailers",
        "websocket_key",
    )

    def __init__(self, method: bytes, target: bytes, minor: int) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers: Headers = []
        self.host: bytes | None = None
        self.length: int | None = None
        self.chunked = False
        self.keep_alive = minor == 1
        self.expect_continue = False
        self.te_trailers = False
        self.authorization: bytes | None = None  # Proxy-Authorization, for us and never sent on
        self.websocket_key: bytes | None = None  # set when this is a well-formed WebSocket upgrade

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)


class ResponseHead:
    """A response head that has one meaning. `length` None with `chunked` False: the body ends with the connection."""

    __slots__ = ("chunked", "headers", "keep_alive", "length", "minor", "reason", "status", "websocket_accept")

    def __init__(self, status: int, reason: bytes, minor: int) -> None:
        self.status = status
        self.reason = reason
        self.minor = minor
        self.headers: Headers = []
        self.length: int | None = None
        self.chunked = False
        self.keep_alive = minor == 1
        self.websocket_accept: bytes | None = None


class _Collector:
    """The callbacks of httptools, doing nothing but collecting."""

    __slots__ = ("complete", "headers", "reason", "url")

    def __init__(self) -> None:
        self.url = b""
        self.reason = b""
        self.headers: Headers = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def _check_lines(head: bytes, max_headers: int) -> None:
    """Refuse what llhttp may let pass, and line endings that another reader may read otherwise."""
    if head.find(b"\r\n\r\n") != len(head) - 4:
        # llhttp would go on and add the next message's fields to this one.
        raise ProtocolError("not one whole head")
    lines = head.count(b"\r\n")
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        raise ProtocolError("bare CR or LF in the head")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise ProtocolError("folded header line")
    if b"\0" in head:
        raise ProtocolError("NUL in the head")
    if lines - 2 > max_headers:
        raise ProtocolError(f"more than {max_headers} header fields", status=431)


def _tokens(value: bytes) -> list[bytes]:
    """The members of a comma-separated list of tokens, lower case; empty members are allowed (RFC 9110 5.6.1)."""
    tokens = [part.strip(b" \t").lower() for part in value.split(b",")]
    tokens = [token for token in tokens if token]
    for token in tokens:
        if not _TOKEN.fullmatch(token):
            raise ProtocolError("malformed list in a header field")
    return tokens


class _Framing:
    """The fields that decide where a message ends, gathered over all headers, then judged once."""

    __slots__ = ("connection", "length", "transfer_encoding", "upgrade")

    def __init__(self) -> None:
        self.length: int | None = None
        self.transfer_encoding = False
        self.connection: list[bytes] | None = None
        self.upgrade = b""

    def take(self, low: bytes, value: bytes) -> None:
        """Take one framing field, refusing a second of a kind."""
        value = value.strip(b" \t")
        if low == b"content-length":
            # Two lengths are refused even when they agree: a list-valued field is how they start to differ.
            if self.length is not None or not _LENGTH.fullmatch(value):
                raise ProtocolError("malformed or repeated Content-Length")
            self.length = int(value)
        elif low == b"transfer-encoding":
            # `chunked` alone. `gzip, chunked` is legal, unused in practice, and read in many ways.
            if self.transfer_encoding or value.lower() != b"chunked":
                raise ProtocolError("malformed or unsupported Transfer-Encoding")
            self.transfer_encoding = True
        elif low == b"connection":
            self.connection = (self.connection or []) + _tokens(value)
        elif low == b"upgrade":
            self.upgrade = self.upgrade + b", " + value.lower() if self.upgrade else value.lower()

    def judge(self, minor: int) -> None:
        if self.transfer_encoding and self.length is not None:
            raise ProtocolError("both Content-Length and Transfer-Encoding")
        if self.transfer_encoding and minor == 0:
            raise ProtocolError("Transfer-Encoding in HTTP/1.0")

    def keep_alive(self, minor: int) -> bool:
        if self.connection is None:
            return minor == 1
        if b"close" in self.connection:
            return False
        return minor == 1 or b"keep-alive" in self.connection

    def without_named(self, headers: Headers) -> Headers:
        """Drop the fields that Connection names as meant for this hop only."""
        named = set(self.connection or ()) - {b"close", b"keep-alive", b"upgrade", b"te", b"proxy-connection"}
        if not named:
            return headers
        if named & _NOT_DROPPABLE:
            raise ProtocolError("Connection names an end-to-end field")
        return [header for header in headers if header[0].lower() not in named]


def parse_request_head(head: bytes, *, max_headers: int = 128) -> RequestHead:
    """Read one request head. Raises ProtocolError; never gives a head that could be read two ways."""
    _check_lines(head, max_headers)
    first_line = _FIRST_LINE.match(head)
    if first_line is None:
        raise ProtocolError("malformed HTTP request")
    collected = _Collector()
    parser = httptools.HttpRequestParser(collected)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # CONNECT and Upgrade: the head itself was fine
    except httptools.HttpParserError as error:
        raise ProtocolError("malformed HTTP request", detail=str(error)) from None
    if not collected.complete:
        raise ProtocolError("malformed HTTP request")
    minor = 1 if first_line[1] == b"1" else 0
    request = RequestHead(parser.get_method(), collected.url, minor)
    framing = _Framing()
    websocket_key: bytes | None = None
    keep = request.headers
    proxy_connection = b""
    for header in collected.headers:
        low = header[0].lower()
        if low in _JUDGED:
            value = header[1]
            if low == b"host":
                if request.host is not None:
                    raise ProtocolError("more than one Host")
                request.host = value.strip(b" \t")
            elif low == b"expect":
                if value.strip(b" \t").lower() != b"100-continue":
                    raise ProtocolError("unknown expectation", status=417)
                request.expect_continue = minor == 1
            elif low == b"te":
                request.te_trailers = b"trailers" in _te_codings(value)
            else:
                framing.take(low, value)
        elif low[:6] == b"proxy-":
            if low == b"proxy-authorization":
                if request.authorization is not None:
                    raise ProtocolError("more than one Proxy-Authorization")
                request.authorization = header[1].strip(b" \t")
            elif low == b"proxy-connection":
                proxy_connection = header[1].strip(b" \t").lower()
        else:
            keep.append(header)
            if low == b"sec-websocket-key":
                # Two of them are no key at all.
                websocket_key = header[1].strip(b" \t") if websocket_key is None else b""
    framing.judge(minor)
    request.length = framing.length
    request.chunked = framing.transfer_encoding
    request.keep_alive = framing.keep_alive(minor)
    if minor == 0 and proxy_connection == b"keep-alive" and framing.connection is None:
        request.keep_alive = True
    if framing.connection:
        request.headers = framing.without_named(keep)
        if (
            b"upgrade" in framing.connection
            and framing.upgrade == b"websocket"
            and websocket_key
            and _WEBSOCKET_KEY.fullmatch(websocket_key)
            and request.method == b"GET"
            and minor == 1
            and not request.has_body
        ):
            request.websocket_key = websocket_key
    if request.host is None and minor == 1:
        raise ProtocolError("no Host in an HTTP/1.1 request")
    if request.method == b"TRACE":
        # TRACE echoes what it is sent, headers that we add included (RFC 9110 section 9.3.8).
        raise ProtocolError("TRACE is not supported", status=405)
    return request


def _te_codings(value: bytes) -> list[bytes]:
    return [part.split(b";", 1)[0].strip(b" \t").lower() for part in value.split(b",")]


def parse_response_head(head: bytes, *, to_head: bool = False, max_headers: int = 256) -> ResponseHead:
    """Read one response head. `to_head`: it answers a HEAD request, so no body follows whatever it says."""
    try:
        _check_lines(head, max_headers)
    except ProtocolError as error:
        raise ProtocolError(f"bad response: {error.public}", status=502) from None
    status_line = _STATUS_LINE.match(head)
    if status_line is None:
        raise ProtocolError("malformed HTTP response", status=502)
    collected = _Collector()
    parser = httptools.HttpResponseParser(collected)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise ProtocolError("malformed HTTP response", status=502, detail=str(error)) from None
    if not collected.complete:
        raise ProtocolError("malformed HTTP response", status=502)
    status = parser.get_status_code()
    minor = 1 if status_line[1] == b"1" else 0
    response = ResponseHead(status, collected.reason, minor)
    framing = _Framing()
    keep = response.headers
    try:
        for header in collected.headers:
            low = header[0].lower()
            if low in _JUDGED:
                if low not in (b"host", b"expect", b"te"):
                    framing.take(low, header[1])
                if low == b"content-length" and status >= 200 and status != 204:
                    keep.append(header)  # RFC 9110 section 8.6: in 1xx and 204 it announces a body that cannot come
            elif low[:6] != b"proxy-" or low == b"proxy-status":
                keep.append(header)
                if low == b"sec-websocket-accept":
                    response.websocket_accept = header[1].strip(b" \t")
        framing.judge(minor)
        if framing.connection:
            response.headers = framing.without_named(keep)
    except ProtocolError as error:
        raise ProtocolError(f"bad response: {error.public}", status=502) from None
    response.keep_alive = framing.keep_alive(minor)
    if status < 200 or status in (204, 304) or to_head:
        response.length = 0
    else:
        response.length = framing.length
        response.chunked = framing.transfer_encoding
    if framing.upgrade != b"websocket" or b"upgrade" not in (framing.connection or ()):
        response.websocket_accept = None
    return response


_MAX_SNIFFED: Final = 8_192  # RFC 9112 section 3 asks for 8,000 at least
_REQUEST_LINE: Final = re.compile(rb"[A-Z-]{1,20} [!-~]+ HTTP/[0-9]\.[0-9]\r\n")
_REQUEST_LINE_BEGUN: Final = re.compile(rb"(?:[A-Z-]{1,20}(?: [!-~]*(?: [!-~]{0,8}\r?)?)?)?")


def sniff_request(data: bytes) -> bool | None:
    """Do these first bytes begin an HTTP request? None: too early to tell."""
    if _REQUEST_LINE.match(data, 0, _MAX_SNIFFED):
        return True
    return None if len(data) < _MAX_SNIFFED and _REQUEST_LINE_BEGUN.fullmatch(data) else False


def encode_headers(first_line: bytes, headers: Headers) -> bytes:
    """A head, ending in its empty line. Field values were checked by the parser that produced them."""
    return b"%b\r\n%b\r\n" % (first_line, b"".join([b"%b: %b\r\n" % header for header in headers]))
