"""Converts HTTP/2 messages to HTTP/1.1 text and back.

HTTP/2 is a coat over the HTTP/1 core: a client's stream is written out as HTTP/1.1 text, goes through every
gate there is, and what comes out is put into frames again. So a field that means something in text (a line
ending, a second length, a hop's own fields) must never get in from a frame, where it means nothing: the
downgrade attacks. Everything here is refused, never repaired. A fault concerns one stream.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hpack import NeverIndexedHeaderTuple

from exeat.errors import ProtocolError
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose
from exeat.wire.fields import Headers
from exeat.wire.http1 import check_origin_target, parse_request_head, parse_response_head

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[!-~\x80-\xff])?)?")
_METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31}")
_AUTHORITY: Final = re.compile(rb"[!-~]{1,300}")
_STATUS: Final = re.compile(rb"[1-5][0-9]{2}")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
# RFC 9113 section 8.2.2.
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_REQUEST_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path"))
# A request with these methods has a body by its nature, so its absence is said (RFC 9110 section 8.6).
_EXPECTS_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))
# What may be worth guessing stays out of the compression tables: its length must not tell a good guess (CRIME).
_GUESSABLE: Final = re.compile(rb"auth|cookie|key|token|secret|passw|sign|session|credential")
_MAX_HEADERS: Final = 1_024  # of text that we have made ourselves, so it has been counted before


class Text(NamedTuple):
    """A head as HTTP/1.1 text, and how its body is framed behind it.

    `length`: that many bytes as they are. `chunked`: in chunks. Neither: there is no body.
    """

    head: bytes
    length: int | None = None
    chunked: bool = False
    method: bytes = b""


def request_text(headers: Headers, *, ended: bool) -> Text:
    """A client's request. `ended`: no body follows. Raises ProtocolError."""
    pseudo, fields = _split(headers)
    if not _REQUEST_PSEUDO.issuperset(pseudo):
        raise ProtocolError("an unknown pseudo-header field")
    method = pseudo.get(b":method", b"")
    if not _METHOD.fullmatch(method) or method == b"CONNECT":
        raise ProtocolError("malformed or unsupported method")
    if pseudo.get(b":scheme") != b"https":
        raise ProtocolError("a scheme other than https")
    path = check_origin_target(pseudo.get(b":path", b""), method)
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1:
        raise ProtocolError("more than one Host")
    authority = pseudo.get(b":authority", hosts[0] if hosts else None)
    if authority is None or (hosts and hosts[0] != authority):
        raise ProtocolError("no authority, or two that differ")
    if not _AUTHORITY.fullmatch(authority):
        raise ProtocolError("malformed authority")
    length = _content_length(fields)
    if ended and length:
        raise ProtocolError("a Content-Length without a body")
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, path, authority)]
    lines += [b"%b: %b\r\n" % field for field in _join_cookies(fields) if field[0] not in (b"host", b"content-length")]
    if ended and length is None and method in _EXPECTS_BODY:
        length = 0
    chunked = not ended and length is None
    if length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    return Text(b"".join(lines) + b"\r\n", length=length, chunked=chunked, method=method)


def response_text(headers: Headers, *, ended: bool, to_head: bool) -> Text:
    """A server's response, interim ones included. `to_head`: it answers HEAD. Raises ProtocolError."""
    pseudo, fields = _split(headers)
    code = pseudo.pop(b":status", b"")
    if pseudo or not _STATUS.fullmatch(code) or code == b"101":
        raise ProtocolError("malformed status", status=502)
    status = int(code)
    length = _content_length(fields)
    lines = [b"HTTP/1.1 %d \r\n" % status]
    lines += [b"%b: %b\r\n" % field for field in fields if field[0] != b"content-length"]
    if status < 200:
        return Text(b"".join(lines) + b"\r\n")
    has_body = not (to_head or status in (204, 304))
    if length is not None and status != 204:
        lines.append(b"content-length: %d\r\n" % length)
    if has_body and ended and length:
        raise ProtocolError("a Content-Length without a body", status=502)
    chunked = has_body and length is None
    if chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    # The stream is for this exchange only: the reader must not keep it for another.
    lines.append(b"connection: close\r\n\r\n")
    return Text(b"".join(lines), length=length if has_body else None, chunked=chunked)


def check_trailers(headers: Headers) -> Headers:
    """The fields behind a body. Which of them may stand there is for the reader of the text to judge."""
    pseudo, fields = _split(headers)
    if pseudo:
        raise ProtocolError("a pseudo-header field in trailers")
    return fields


def _split(headers: Headers) -> tuple[dict[bytes, bytes], Headers]:
    """Pseudo-header fields, each once and in front, and the others; every name and value fit to stand in text."""
    pseudo: dict[bytes, bytes] = {}
    fields: Headers = []
    for name, value in headers:
        if not _VALUE.fullmatch(value):
            raise ProtocolError("a character that may not be in a header field")
        if name[:1] == b":":
            if fields or name in pseudo:
                raise ProtocolError("a pseudo-header field twice or out of place")
            pseudo[bytes(name)] = bytes(value)
            continue
        if not _NAME.fullmatch(name):
            raise ProtocolError("malformed name of a header field")
        if name in _CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
            raise ProtocolError("a header field that HTTP/2 does not have")
        fields.append((bytes(name), bytes(value)))
    return pseudo, fields


def _content_length(fields: Headers) -> int | None:
    found = [value for name, value in fields if name == b"content-length"]
    if len(found) > 1 or not all(_LENGTH.fullmatch(value) for value in found):
        raise ProtocolError("malformed or repeated Content-Length")
    return int(found[0]) if found else None


def _join_cookies(fields: Headers) -> Headers:
    """Cookies may come in crumbs, one field each (RFC 9113 section 8.2.3)."""
    crumbs = [value for name, value in fields if name == b"cookie"]
    if len(crumbs) < 2:
        return fields
    return [field for field in fields if field[0] != b"cookie"] + [(b"cookie", b"; ".join(crumbs))]


# The other way: text that the core has written


class Head(NamedTuple):
    """The head of a message in HTTP/2 fields. `interim`: another will follow."""

    headers: Headers
    interim: bool = False


class End(NamedTuple):
    """The end of a message."""

    trailers: Headers


Part = Head | bytes | End


class MessageReader:
    """Takes one message of HTTP/1.1 text apart, in whatever portions it comes. Raises ProtocolError."""

    def __init__(self) -> None:
        self._partial = b""
        self._decoder: BodyDecoder | None = None
        self.done = False

    @property
    def ends_with_connection(self) -> bool:
        return isinstance(self._decoder, UntilClose)

    def feed(self, data: bytes) -> list[Part]:
        """What `data` adds to the message. What comes behind its end is dropped: no one asked for it."""
        parts: list[Part] = []
        while self._decoder is None:
            data = self._partial + data
            end = data.find(b"\r\n\r\n") + 4
            self._partial = b"" if end > 3 else data
            if end <= 3:
                return parts
            head, self._decoder = self._read_head(data[:end])
            parts.append(head)
            data = data[end:]
        decoder = self._decoder
        if self.done:
            return parts
        payload = decoder.feed(data) if data and not decoder.done else []
        while decoder.is_behind:
            payload += decoder.feed(b"")  # the core's own chunks are few and large
        if payload:
            parts.append(payload[0] if len(payload) == 1 else b"".join(payload))
        if decoder.done:
            self.done = True
            parts.append(End([(name.lower(), value) for name, value in decoder.trailers]))
        return parts

    def _read_head(self, head: bytes) -> tuple[Head, BodyDecoder | None]:
        raise NotImplementedError


class ResponseReader(MessageReader):
    """A response that the core sends to a client."""

    def __init__(self, *, to_head: bool) -> None:
        super().__init__()
        self._to_head = to_head

    def _read_head(self, head: bytes) -> tuple[Head, BodyDecoder | None]:
        response = parse_response_head(head, to_head=self._to_head, max_headers=_MAX_HEADERS, ours=True)
        if response.status == 101:
            raise ProtocolError("a switch of protocols inside HTTP/2", status=502)
        headers = [(b":status", b"%d" % response.status)]
        headers += [(name.lower(), value) for name, value in response.headers]
        if response.status < 200:
            return Head(headers, interim=True), None
        if response.chunked:
            return Head(headers), ChunkedBody(max_trailers=None)
        return Head(headers), LengthBody(response.length) if response.length is not None else UntilClose()


class RequestReader(MessageReader):
    """A request that the core sends to a server. `to_head` says whether it is a HEAD, once its head was read."""

    to_head = False

    def _read_head(self, head: bytes) -> tuple[Head, BodyDecoder | None]:
        request = parse_request_head(head, max_headers=_MAX_HEADERS)
        self.to_head = request.method == b"HEAD"
        headers = [
            (b":method", request.method),
            (b":scheme", b"https"),
            (b":authority", request.host or b""),
            (b":path", request.target),
        ]
        headers += [_guarded(name.lower(), value) for name, value in request.headers]
        if request.length is not None:
            headers.append((b"content-length", b"%d" % request.length))
        if request.te_trailers:
            headers.append((b"te", b"trailers"))
        if request.expect is not None:
            headers.append((b"expect", request.expect))
        if request.chunked:
            return Head(headers), ChunkedBody(max_trailers=None)
        return Head(headers), LengthBody(request.length or 0)


def _guarded(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return NeverIndexedHeaderTuple(name, value) if _GUESSABLE.search(name) else (name, value)
