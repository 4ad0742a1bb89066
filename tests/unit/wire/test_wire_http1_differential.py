"""Heads against two other readers: a regular expression made from RFC 9112, and h11.

No one is asked to agree on what is refused. Whatever is accepted must be read the same way by all three:
a difference is what request smuggling lives on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import h11
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.fields import Headers
from exeat.wire.http1 import (
    RequestHead,
    ResponseHead,
    encode_head,
    encode_target,
    parse_request_head,
    parse_response_head,
    sniff_request,
)
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, mutate, mutations

T = TypeVar("T")

# RFC 9112 sections 2 to 5, RFC 9110 section 5. Possessive throughout: no second reading is tried.
_TCHAR: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_FIELDS: Final = rb"(?P<fields>(?:" + _TCHAR + rb"++:[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
STRICT_REQUEST: Final = re.compile(
    rb"(?P<method>" + _TCHAR + rb"++) (?P<target>[\x21-\x7e]++) HTTP/1\.(?P<minor>[01])\r\n" + _FIELDS
)
# One leniency, shared with h11: the space after the status may be missing along with the reason.
STRICT_RESPONSE: Final = re.compile(
    rb"HTTP/1\.(?P<minor>[01]) (?P<status>[1-5][0-9]{2}+)(?: (?P<reason>[\t\x20-\x7e\x80-\xff]*+))?+\r\n" + _FIELDS
)
HOP_BY_HOP: Final = {
    *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    *(b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"proxy-x"),
}
END_TO_END: Final = {b"authorization", b"content-type", b"cookie", b"set-cookie", b"range", b"cache-control"}

FIELDS: Final = [
    b"Host: good.test",
    b"Host: evil.test",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"content-length:6 ",
    b"Content-Length: 5, 5",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:\tChunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Connection: close",
    b"Connection: keep-alive, x-drop",
    b"Connection: Upgrade",
    b"Connection: content-length",
    b"Connection: host",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    b"Expect: 100-continue",
    b"TE: trailers",
    b"Trailer: X-Sum",
    b"Keep-Alive: 5",
    b"Proxy-Authorization: Basic dTpw",
    b"Proxy-Connection: keep-alive",
    b"Proxy-X: y",
    b"X-Drop: 1",
    b"X-Empty:",
    b"X-Space:  a b\t ",
    b"X-8bit: caf\xe9\x85\xa0",
    b"Content_Length: 9",
    b"Authorization: Bearer t",
]
METHODS: Final = [b"GET", b"HEAD", b"POST", b"CONNECT", b"OPTIONS", b"PUT", b"M-SEARCH", b"SOURCE", b"TRACE", b"get"]
TARGETS: Final = [
    b"http://good.test/",
    b"/",
    b"*",
    b"good.test:443",
    b"http://good.test?x",
    b"/a#b",
    b"/%00",
    b"ftp://x/",
]
VERSIONS: Final = [b"HTTP/1.1"] * 16 + [b"HTTP/1.0"] * 4 + [b"HTTP/1.2", b"HTTP/2.0", b"RTSP/1.0", b"ICE/1.0"]
LINES: Final = [*(field + b"\r\n" for field in FIELDS), b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"\r\nX: y"]

field_names = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=8).map(str.encode)
field_values = st.binary(max_size=8).map(lambda raw: bytes(b for b in raw if b == 9 or (b >= 32 and b != 127)))
fields = st.lists(
    st.sampled_from(FIELDS)
    | st.sampled_from(FIELDS[19:])
    | st.builds(lambda name, value: name + b":" + value, field_names, field_values),
    max_size=4,
)


def join(first: Sequence[bytes], rest: Sequence[bytes]) -> bytes:
    return b"\r\n".join([b" ".join(first), *rest]) + b"\r\n\r\n"


request_heads = st.builds(
    lambda method, target, version, host, rest: join([method, target, version], [*host, *rest]),
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.sampled_from(VERSIONS),
    st.sampled_from([[b"Host: good.test"], [b"Host: good.test"], [b"Host: good.test"], []]),
    fields,
)
response_heads = st.builds(
    lambda version, status, reason, rest: join([version, b"%d" % status, *reason], rest),
    st.sampled_from(VERSIONS),
    st.sampled_from([100, 101, 103, 200, 200, 200, 204, 206, 301, 304, 404, 500, 599]),
    st.sampled_from([[b"OK"], [b"Not Found"], [b""], [], [b"caf\xe9"], [b"\tx"]]),
    fields,
)
damage = mutations(LINES, max_size=1) | mutations(LINES)


def split_fields(raw: bytes) -> Headers:
    """The fields as the strict grammar has them: name, and value without its optional white space."""
    pairs = (line.split(b":", 1) for line in raw.split(b"\r\n")[:-1])
    return [(name, value.strip(b" \t")) for name, value in pairs]


def values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name.lower() == wanted]


def strict_framing(headers: Headers, minor: bytes) -> tuple[int | None, bool]:
    """Where the message ends, by a reader that knows no mercy: at most one field says so, in one spelling."""
    lengths, codings = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    assert len(lengths) + len(codings) <= 1
    if codings:
        assert codings[0].lower() == b"chunked"
        assert minor == b"1"
    if lengths:
        assert re.fullmatch(rb"[0-9]{1,18}+", lengths[0])
        return int(lengths[0]), False
    return None, bool(codings)


def passed_on(headers: Headers, never: set[bytes]) -> Headers:
    """What may leave: nothing hop-by-hop, nothing that Connection names."""
    named = {token.strip(b" \t").lower() for value in values(headers, b"connection") for token in value.split(b",")}
    assert not named & (END_TO_END | {b"host", b"content-length", b"transfer-encoding"})
    drop = HOP_BY_HOP | never | named
    return [(name, value) for name, value in headers if name.lower() not in drop and name.lower()[:6] != b"proxy-"]


def stripped(headers: Headers) -> Headers:
    return [(name, value.strip(b" \t")) for name, value in headers]


def comparable(headers: Headers) -> Headers:
    """h11 lowers the case of a transfer coding, and of nothing else."""
    return [(name, value.lower() if name.lower() == b"transfer-encoding" else value) for name, value in headers]


def accept_or_status(parse: Callable[[], T]) -> T | int:
    """What was read, or the status of the refusal; any other exception goes through and fails the test."""
    try:
        return parse()
    except ProtocolError as error:
        return error.status


def h11_framing(headers: Sequence[tuple[bytes, bytes]]) -> tuple[int | None, bool]:
    """h11 returns the fields normalised, so that its own reading of the framing can be seen in them."""
    found = dict(headers)
    length = found.get(b"content-length")
    return (None if length is None else int(length), b"transfer-encoding" in found)


def h11_request(data: bytes) -> h11.Request:
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    reader.receive_data(data)
    read = reader.next_event()
    assert isinstance(read, h11.Request)
    return read


def h11_response(data: bytes, method: str) -> h11.Response | h11.InformationalResponse:
    reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    # h11 refuses a 101 that no one asked for; whether one was asked for is not the parser's to know.
    reader.send(
        h11.Request(
            method=method, target="/", headers=[("Host", "a"), ("Connection", "upgrade"), ("Upgrade", "websocket")]
        )
    )
    reader.send(h11.EndOfMessage())
    reader.receive_data(data)
    read = reader.next_event()
    assert isinstance(read, h11.Response | h11.InformationalResponse)
    return read


def check_accepted_request(data: bytes, head: RequestHead) -> None:
    line, end, rest = data.partition(b"\r\n")
    data = encode_target(line) + end + rest  # UTF-8 in a target is read as what it is percent-encoded
    strict = STRICT_REQUEST.fullmatch(data)
    assert strict is not None
    headers = split_fields(strict["fields"])
    length, chunked = strict_framing(headers, strict["minor"])
    hosts = values(headers, b"host")
    assert len(hosts) == 1 or (not hosts and strict["minor"] == b"0")
    assert (head.method, head.target, b"%d" % head.minor) == (strict["method"], strict["target"], strict["minor"])
    assert (head.length, head.chunked) == (length, chunked)
    assert head.host == (hosts[0] if hosts else None)
    assert stripped(head.headers) == passed_on(headers, {b"host", b"content-length", b"expect"})

    other = h11_request(data)
    assert (other.method, other.target, other.http_version) == (head.method, head.target, b"1.%d" % head.minor)
    assert h11_framing(list(other.headers)) == (head.length, head.chunked)
    assert other.headers.raw_items() == comparable(headers)

    # What is built from it is one request again, with nothing in it that was not accepted.
    rebuilt = encode_head(b"%b %b HTTP/1.1\r\nHost: h" % (head.method, head.target), head.passed)
    assert STRICT_REQUEST.fullmatch(rebuilt)
    assert parse_request_head(rebuilt).passed == head.passed
    other = h11_request(rebuilt)
    assert h11_framing(list(other.headers)) == (None, False)
    assert other.headers.raw_items() == [(b"Host", b"h"), *stripped(head.headers)]
    if len(data) < 8_000:
        assert sniff_request(data) is True


def check_accepted_response(data: bytes, head: ResponseHead, *, to_head: bool) -> None:
    strict = STRICT_RESPONSE.fullmatch(data)
    assert strict is not None
    headers = split_fields(strict["fields"])
    framing = strict_framing(headers, strict["minor"])
    bodiless = head.status < 200 or head.status in (204, 304) or to_head
    assert (head.length, head.chunked) == ((0, False) if bodiless else framing)
    assert (b"%d" % head.status, b"%d" % head.minor) == (strict["status"], strict["minor"])
    assert head.reason == (strict["reason"] or b"")
    kept_out = {b"host", b"expect"} | ({b"content-length"} if head.status < 200 or head.status == 204 else set())
    assert stripped(head.headers) == passed_on(headers, kept_out)

    rebuilt = encode_head(b"HTTP/1.1 %d %b" % (head.status, head.reason), head.passed)
    again = STRICT_RESPONSE.fullmatch(rebuilt)
    assert again is not None
    assert split_fields(again["fields"]) == stripped(head.headers)

    other = h11_response(data, "HEAD" if to_head else "GET")
    assert (other.status_code, other.http_version) == (head.status, b"1.%d" % head.minor)
    assert h11_framing(list(other.headers)) == framing
    assert other.headers.raw_items() == comparable(headers)


@given(data=request_heads, changes=damage)
@example(data=b"GET / RTSP/1.0\r\n\r\n", changes=[])
@example(data=b"GET  / HTTP/1.0\r\n\r\n", changes=[])
@example(data=b"GET / HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n", changes=[])
@example(data=b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY: \r\n\r\n", changes=[])
@settings(max_examples=examples(800), deadline=None)
def test_whatever_request_is_accepted_all_readers_read_alike(data: bytes, changes: list[Mutation]) -> None:
    """B2, B3: accepted means method, target, fields and framing as RFC 9112 and h11 have them; else ProtocolError."""
    data = mutate(data, changes)
    head = accept_or_status(lambda: parse_request_head(data))
    event("refused" if isinstance(head, int) else "accepted")
    if isinstance(head, int):
        assert head in (400, 405, 417, 431)
    else:
        check_accepted_request(data, head)


@given(data=response_heads, changes=damage, to_head=st.booleans())
@example(data=b"RTSP/1.0 200 OK\r\n\r\n", changes=[], to_head=False)
@example(data=b"\r\nHTTP/1.1 200 OK\r\n\r\n", changes=[], to_head=False)
@example(data=b"HTTP/1.1 200 O\x01\r\n\r\n", changes=[], to_head=False)
@example(data=b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", changes=[], to_head=False)
@settings(max_examples=examples(800), deadline=None)
def test_whatever_response_is_accepted_all_readers_read_alike(
    data: bytes, changes: list[Mutation], to_head: bool
) -> None:
    """Accepted means status, fields and framing as RFC 9112 and h11 have them; everything else is a 502."""
    data = mutate(data, changes)
    head = accept_or_status(lambda: parse_response_head(data, to_head=to_head))
    event("refused" if isinstance(head, int) else "accepted")
    if isinstance(head, int):
        assert head == 502
    else:
        check_accepted_response(data, head, to_head=to_head)


@given(data=st.binary(max_size=60) | st.lists(st.sampled_from(LINES)).map(b"".join))
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_at_all_give_a_head_or_a_protocol_error(data: bytes) -> None:
    """No input reaches another exception."""
    for ending in (b"", b"\r\n\r\n"):
        try:
            check_accepted_request(data + ending, parse_request_head(data + ending))
        except ProtocolError:
            pass
        try:
            check_accepted_response(data + ending, parse_response_head(data + ending), to_head=False)
        except ProtocolError:
            pass


SAFE_FIELDS: Final = [
    b"Accept: */*",
    b"X-Empty:",
    b"X-Space: \ta b\t",
    b"X-8bit: \xe9",
    b"Cookie: a=b; c=d",
    b"TE: trailers",
]
FRAMINGS: Final = [[], [b"Content-Length: 5"], [b"Transfer-Encoding: chunked"]]


@given(
    method=st.sampled_from([b"GET", b"POST", b"PUT", b"OPTIONS"]),
    target=st.from_regex(rb"http://[a-z]{1,8}\.test(:[0-9]{1,5})?(/[!$-;=?-Za-z~]{0,12})?", fullmatch=True),
    rest=st.lists(st.sampled_from(SAFE_FIELDS), max_size=5),
    framing=st.sampled_from(FRAMINGS),
)
@settings(max_examples=examples(200), deadline=None)
def test_undamaged_messages_are_accepted(method: bytes, target: bytes, rest: list[bytes], framing: list[bytes]) -> None:
    """The control for the tests above: strictness does not cost an ordinary message."""
    ask = join([method, target, b"HTTP/1.1"], [b"Host: a", *rest, *framing])
    check_accepted_request(ask, parse_request_head(ask))
    answer = join([b"HTTP/1.1", b"200", b"OK"], [*rest, *framing])
    check_accepted_response(answer, parse_response_head(answer), to_head=False)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\x7f\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n",
    ],
)
def test_where_h11_is_lenient_we_are_not(data: bytes) -> None:
    """The known differences, all in one direction: h11 reads these, and we refuse them."""
    assert h11_request(data).http_version in (b"1.0", b"1.1")
    with pytest.raises(ProtocolError):
        parse_request_head(data)
