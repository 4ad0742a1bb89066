"""HTTP/1 heads: llhttp reads them, we judge them. Request targets, our own answers, and what might be HTTP at all.

A head is handed over whole, up to and including its empty line, so that nothing here depends on how
the bytes arrived. llhttp knows the grammar; on top of it every ambiguity that two HTTP readers could
settle differently is refused (request smuggling, RFC 9112 section 11.2), never repaired. The first line
and all framing that is sent on are written again; of the original only judged lines are passed along.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from exeat.errors import ProtocolError
from exeat.wire.fields import Fields, Headers, KnownFields, LastFields, make_room, read_fields, split_lines

# llhttp also takes RTSP/ and ICE/, several spaces, an empty line in front, and controls in a reason.
# The registered methods that clients use. One that we do not know may have a framing that we do not know.
_METHODS: Final = frozenset(
    b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK SEARCH "
    b"REPORT MKACTIVITY CHECKOUT MERGE BIND REBIND UNBIND ACL LINK UNLINK MKCALENDAR M-SEARCH NOTIFY SUBSCRIBE "
    b"UNSUBSCRIBE PURGE QUERY".split()
)
_FIRST_LINE: Final = re.compile(rb"([A-Z-]++) ([!-~\x80-\xff]++) HTTP/1\.([01])(?=\r\n)")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})((?: [\t\x20-\x7e\x80-\xff]*+)?)(?=\r\n)")
# Of whole heads that are kept: a reason in other words may be what one message says, like any other field.
_USUAL_REASONS: Final = (b"", b" ", b" OK", b" Created", b" No Content", b" Not Modified", b" Not Found")
_WEBSOCKET_KEY: Final = re.compile(rb"[+/0-9A-Za-z]{22}==")  # 16 bytes in base64 (RFC 6455 section 4.1)


class RequestHead(NamedTuple):
    """A request head that has one meaning. `passed` are the header lines to send on, Host and framing excluded."""

    method: bytes
    target: bytes
    minor: int  # of HTTP/1.x
    host: bytes | None
    length: int | None
    chunked: bool
    passed: bytes
    keep_alive: bool
    expect: bytes | None
    upgrade: bytes
    authorization: bytes | None  # Proxy-Authorization, for us and never sent on
    te_trailers: bool
    websocket_key: bytes | None  # set when this is a well-formed WebSocket upgrade

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)

    @property
    def expect_continue(self) -> bool:
        return self.expect is not None and self.minor == 1

    @property
    def headers(self) -> Headers:
        return split_lines(self.passed)


class ResponseHead(NamedTuple):
    """A response head that has one meaning.

    `length` None with `chunked` False: the body ends with the connection.
    """

    status: int
    reason: bytes
    minor: int
    length: int | None
    chunked: bool
    passed: bytes
    keep_alive: bool
    websocket_accept: bytes | None

    @property
    def headers(self) -> Headers:
        return split_lines(self.passed)


class KnownHeads(KnownFields):
    """The same for whole heads of responses: a server that answers in the same words is not read again. Of heads that
    hold other lines than `KnownFields` keeps, nothing is kept here either.
    """

    __slots__ = ("responses",)

    def __init__(self) -> None:
        super().__init__()
        self.responses: dict[tuple[bytes, int, bool], ResponseHead] = {}


def parse_request_head(
    head: bytes, *, max_headers: int = 128, known: KnownFields | LastFields | None = None
) -> RequestHead:
    """Read one request head. Raises ProtocolError; never returns a head that could be read two ways.

    `known`: where lines that were read before are kept.
    """
    first_line = check_request_line(head)
    read = read_fields if known is None else known.read
    fields = read(head[first_line.end() :], max_headers, response=False, keep_length=False)
    method, target, version = first_line.groups()
    if fields.as_request is not None and version == b"1" and target.isascii() and method != b"TRACE":
        return tuple.__new__(RequestHead, (method, target, 1, *fields.as_request))
    minor = 1 if version == b"1" else 0
    if not target.isascii():
        target = encode_target(target)
    if fields.chunked and minor == 0:
        raise ProtocolError("Transfer-Encoding in HTTP/1.0")
    if fields.expect is not None and fields.expect != b"100-continue":
        raise ProtocolError("unknown expectation", status=417)
    if fields.host is None and minor == 1:
        raise ProtocolError("no Host in an HTTP/1.1 request")
    if method == b"TRACE":
        # TRACE echoes what it is sent, headers that we add included (RFC 9110 section 9.3.8).
        raise ProtocolError("TRACE is not supported", status=405)
    keep_alive = fields.is_persistent(minor)
    if minor == 0 and not fields.connection:
        keep_alive = fields.proxy_connection == b"keep-alive"
    request = RequestHead(
        method, target, minor, fields.host, fields.length, fields.chunked, fields.passed, keep_alive,
        fields.expect, fields.upgrade, fields.authorization, fields.te_trailers,
        fields.key if fields.upgrade and _is_websocket(method, minor, fields) else None,
    )  # fmt: skip
    if fields.is_kept and minor == 1 and not fields.upgrade:
        fields.as_request = request[3:]  # all but the first line, and it does not depend on that
    return request


def check_request_line(head: bytes) -> re.Match[bytes]:
    """Method, target and minor version. Needs the line's end, and nothing behind it."""
    first_line = _FIRST_LINE.match(head)
    if first_line is None or first_line[1] not in _METHODS:
        raise ProtocolError("malformed HTTP request")
    return first_line


def _is_websocket(method: bytes, minor: int, fields: Fields) -> bool:
    return (
        b"upgrade" in fields.connection
        and fields.upgrade == b"websocket"
        and fields.key is not None
        and _WEBSOCKET_KEY.fullmatch(fields.key) is not None
        and method == b"GET"
        and minor == 1
        and not (fields.chunked or fields.length)
    )


def parse_response_head(
    head: bytes, *, to_head: bool = False, max_headers: int = 256, known: KnownHeads | None = None, ours: bool = False
) -> ResponseHead:
    """Read one response head. `to_head`: it answers a HEAD request, so no body follows whatever it says.

    `known`: where what was read before is kept. `ours`: the gateway has written it, Proxy-Status included.
    """
    if known is not None and not ours:
        read = known.responses.get((head, max_headers, to_head))
        if read is not None:
            return read
    try:
        return _parse_response_head(head, to_head, max_headers, known, ours)
    except ProtocolError as error:
        raise ProtocolError(f"bad response: {error.public}", status=502, detail=error.detail) from None


def _parse_response_head(
    head: bytes, to_head: bool, max_headers: int, known: KnownHeads | None, ours: bool
) -> ResponseHead:
    status_line = _STATUS_LINE.match(head)
    if status_line is None:
        raise ProtocolError("malformed HTTP response")
    version, code, reason = status_line.groups()
    minor, status = 1 if version == b"1" else 0, int(code)
    # RFC 9110 section 8.6: in 1xx and 204 a length announces a body that cannot come.
    keep_length = status >= 200 and status != 204
    block = head[status_line.end() :]
    if known is not None and not ours:
        fields = known.read(block, max_headers, response=True, keep_length=keep_length)
    else:
        fields = read_fields(block, max_headers, response=True, keep_length=keep_length, keep_proxy_status=ours)
    if fields.chunked and minor == 0:
        raise ProtocolError("Transfer-Encoding in HTTP/1.0")
    switches = bool(fields.upgrade) and b"upgrade" in fields.connection
    if status == 101 and not switches:
        raise ProtocolError("switch to no protocol")
    length, chunked = fields.length, fields.chunked
    if status < 200 or status in (204, 304) or to_head:
        length, chunked = 0, False
    accept = fields.accept if switches and fields.upgrade == b"websocket" else None
    response = ResponseHead(
        status, reason[1:], minor, length, chunked, fields.passed, fields.is_persistent(minor), accept
    )
    if known is not None and fields.is_kept and reason in _USUAL_REASONS:
        make_room(known.responses)
        known.responses[head, max_headers, to_head] = response
    return response


def encode_head(first_line: bytes, passed: bytes, extra: bytes = b"") -> bytes:
    """A head to send on: lines that were judged, and lines of our own, each of these ending in CRLF."""
    return b"%b%b\r\n%b\r\n" % (first_line, passed, extra)


# Request targets

# `urllib.parse.urlsplit` finds a host in most of the URLs that a browser must reject, so one pattern decides.
# No "@" and no "\" in the authority: that is how one reader sees good.test and another evil.test.
_ABSOLUTE: Final = re.compile(rb"[hH][tT][tT][pP]://([!$&'()*+,\-.0-9:;=A-Z\[\]_a-z~]+)((?:[/?][!\"$-~]*)?)")
_BEYOND_ASCII: Final = re.compile(rb"[\x80-\xff]")
_ORIGIN: Final = re.compile(rb"/[!\"$-~]*")


def encode_target(target: bytes) -> bytes:
    """A request target that may hold UTF-8 as it is, which curl and others send, with that percent-encoded.

    Raises ProtocolError for other bytes: servers may read them in any way.
    """
    try:
        target.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("the request target is not UTF-8; percent-encode it") from None
    return _BEYOND_ASCII.sub(lambda found: b"%%%02X" % found[0][0], target)


def parse_absolute_target(target: bytes, method: bytes) -> tuple[bytes, bytes]:
    """`http://authority/path?query` as (authority, what to send as the request target)."""
    matched = _ABSOLUTE.fullmatch(target)
    if matched is None:
        if target[:8].lower() == b"https://":
            raise ProtocolError("https URLs go through CONNECT, not through a plain proxy request")
        if target[:6].lower() == b"ftp://":
            raise ProtocolError(
                "ftp URLs do not go through this proxy: use https, or allow the host with all its ports (HOST:*) "
                "and start the program without ALL_PROXY and ftp_proxy"
            )
        if target[:1] == b"/":
            raise ProtocolError("this is a proxy: the request target must be an absolute http:// URL")
        raise ProtocolError("malformed request target")
    rest = matched[2]
    if not rest:
        rest = b"*" if method == b"OPTIONS" else b"/"
    elif rest[:1] == b"?":
        rest = b"/" + rest
    return matched[1], rest


def check_origin_target(target: bytes, method: bytes) -> bytes:
    """The origin-form target of a request inside a tunnel, where the host is settled already."""
    if _ORIGIN.fullmatch(target) or (target == b"*" and method == b"OPTIONS"):
        return target
    raise ProtocolError("malformed request target")


# Our own answers

_REASONS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


def encode_reply(status: int, sentence: str, *, error: str, close: bool = True, body: bool = True) -> bytes:
    """A complete response, without internals. `sentence` may be read by the sandbox. No body for HEAD.

    `error` is the type in Proxy-Status (RFC 9209): clients tell by it our refusal from one of the server.
    """
    text = f"exeat: {_printable(sentence)}\n".encode("ascii")
    extra = ""
    if status == 407:
        extra = 'Proxy-Authenticate: Basic realm="exeat"\r\n'
    elif status == 405:
        extra = "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, CONNECT\r\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f'Proxy-Status: exeat; error={error}; details="{_quoted(sentence)}"\r\n'
        f"{extra}"
        "Content-Type: text/plain; charset=utf-8\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n"
        "\r\n"
    )
    return head.encode("ascii") + (text if body else b"")


def _printable(sentence: str) -> str:
    """ASCII without controls: the sentence may quote what an attacker sent."""
    return "".join(char if " " <= char <= "~" else "?" for char in sentence)


def _quoted(sentence: str) -> str:
    """The inside of a structured-field string (RFC 8941 section 3.3.3)."""
    return _printable(sentence).replace("\\", "\\\\").replace('"', '\\"')


# Could these first bytes be a request? Asked where any protocol may pass: a server of several names could otherwise be
# asked for another one in a way that only it understands. So what counts is not what is well formed but what the most
# forgiving server reads; the parser then refuses it.

MAX_SNIFFED: Final = 8_192  # RFC 9112 section 3 asks for request lines of 8,000 at least
# What follows is in frames, so nothing can be read here. To be recognised whole: it begins like a request of version 1.
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Clients that wait for an answer without ever ending a line: XMPP, JSON. No server takes these for a method.
_OTHERS: Final = re.compile(rb"<\?xml |<stream:stream |\{")

# A blank is what Python's `split` takes for one, and servers that are written with it. A carriage return may stand
# alone; behind the method of HTTP/0.9 it is no blank, since a line that ends there has no target.
_GAP: Final = rb"\t\x0b\x0c\x1c-\x20\x85\xa0"
_BLANK: Final = rb"\r" + _GAP
_TEXT: Final = rb"\t\x0b-\r\x1c-\x7e\x80-\xff"
# Behind a word in capitals some servers take any byte in a target. Other words begin binary protocols, too.
_WORDS: Final = (rb"[A-Z_-]++[%b][^\n]*" % _BLANK, rb"[!-~]++[%b][%b]*" % (_BLANK, _TEXT))
# These methods are enough: no version needs to follow (HTTP/0.9), or it may be that of RTSP, which Node takes.
_OLD_METHODS: Final = rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE)[%b]" % _GAP
_VERSION: Final = rb"?(?i:HTTP)/"
_REQUEST: Final = re.compile(
    rb"[\n%b]*+(?:%b|%b%b|%b%b)" % (_BLANK, _OLD_METHODS, _WORDS[0], _VERSION, _WORDS[1], _VERSION)
)
_BEGINNING: Final = re.compile(rb"[\n%b]*+(?:%b+|%b+|[!-~]++)?" % (_BLANK, *_WORDS))


def sniff_request(data: bytes) -> bool | None:
    """Might a server read these first bytes as HTTP/1 or 0.9? None: too early to tell; that ends at MAX_SNIFFED."""
    if _HTTP2_PREFACE.startswith(data[: len(_HTTP2_PREFACE)]):
        return False if len(data) >= len(_HTTP2_PREFACE) else None
    if _OTHERS.match(data):
        return False
    if _REQUEST.match(data, 0, MAX_SNIFFED):
        return True
    if not _BEGINNING.fullmatch(data, 0, MAX_SNIFFED):
        return False
    return None if len(data) < MAX_SNIFFED else True
