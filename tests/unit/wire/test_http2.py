"""HTTP/2 messages as text and back: what means something only in text never gets in from a frame."""

from __future__ import annotations

from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError as H2ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import NeverIndexedHeaderTuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.fields import Headers, read_fields
from exeat.wire.http1 import parse_request_head, parse_response_head
from exeat.wire.http2 import (
    End,
    Head,
    MessageReader,
    Part,
    RequestReader,
    ResponseReader,
    check_trailers,
    request_text,
    response_text,
)
from exeat.wire.http2_frames import FrameReader, Http2Error, encode_goaway, encode_reset, parse_goaway
from tests.support.examples import examples
from tests.unit.wire.mutation import TELLING, cut, cut_points, mutate, mutations

PLAIN: Headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"good.test"), (b":path", b"/")]


def changed(**changes: bytes) -> Headers:
    wanted = dict(PLAIN) | {b":" + name.encode(): value for name, value in changes.items()}
    return list(wanted.items())


# From frames to text


@pytest.mark.parametrize(
    ("headers", "ended", "expected"),
    [
        (PLAIN, True, b"GET / HTTP/1.1\r\nhost: good.test\r\n\r\n"),
        (PLAIN, False, b"GET / HTTP/1.1\r\nhost: good.test\r\ntransfer-encoding: chunked\r\n\r\n"),
        (changed(method=b"POST"), True, b"POST / HTTP/1.1\r\nhost: good.test\r\ncontent-length: 0\r\n\r\n"),
        (
            [*PLAIN, (b"content-length", b"007"), (b"x", b"y")],
            False,
            b"GET / HTTP/1.1\r\nhost: good.test\r\nx: y\r\ncontent-length: 7\r\n\r\n",
        ),
        ([*PLAIN, (b"host", b"good.test")], True, b"GET / HTTP/1.1\r\nhost: good.test\r\n\r\n"),
        (
            [field for field in PLAIN if field[0] != b":authority"] + [(b"host", b"good.test")],
            True,
            b"GET / HTTP/1.1\r\nhost: good.test\r\n\r\n",
        ),
        (changed(method=b"OPTIONS", path=b"*"), True, b"OPTIONS * HTTP/1.1\r\nhost: good.test\r\n\r\n"),
        (
            [*PLAIN, (b"cookie", b"a=1"), (b"te", b"trailers"), (b"cookie", b"b=2")],
            True,
            b"GET / HTTP/1.1\r\nhost: good.test\r\nte: trailers\r\ncookie: a=1; b=2\r\n\r\n",
        ),
    ],
)
def test_requests(headers: Headers, ended: bool, expected: bytes) -> None:
    text = request_text(headers, ended=ended)
    assert text.head == expected
    parsed = parse_request_head(text.head)
    assert (parsed.chunked, parsed.length) == (text.chunked, text.length)


@pytest.mark.parametrize(
    ("headers", "ended", "to_head", "expected"),
    [
        ([(b":status", b"200")], False, False, b"200 \r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"),
        ([(b":status", b"200")], True, False, b"200 \r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"),
        (
            [(b":status", b"200"), (b"content-length", b"3")],
            False,
            False,
            b"200 \r\ncontent-length: 3\r\nconnection: close\r\n\r\n",
        ),
        (
            [(b":status", b"200"), (b"content-length", b"3")],
            True,
            True,
            b"200 \r\ncontent-length: 3\r\nconnection: close\r\n\r\n",
        ),
        ([(b":status", b"204"), (b"content-length", b"0")], True, False, b"204 \r\nconnection: close\r\n\r\n"),
        ([(b":status", b"103"), (b"link", b"</a>")], False, False, b"103 \r\nlink: </a>\r\n\r\n"),
    ],
)
def test_responses(headers: Headers, ended: bool, to_head: bool, expected: bytes) -> None:
    text = response_text(headers, ended=ended, to_head=to_head)
    assert text.head == b"HTTP/1.1 " + expected
    parsed = parse_response_head(text.head, to_head=to_head)
    assert parsed.status < 200 or not parsed.keep_alive
    assert parsed.chunked == text.chunked


@pytest.mark.parametrize(
    ("headers", "ended"),
    [
        ([(b":status", b"200"), (b"content-length", b"3")], True),
        ([(b":status", b"101")], False),
        ([(b":status", b"600")], False),
        ([(b":status", b"20")], False),
        ([(b":status", b"200\r\nx: y")], False),
        ([(b":status", b"200"), (b":method", b"GET")], False),
        ([], False),
    ],
)
def test_refused_responses(headers: Headers, ended: bool) -> None:
    with pytest.raises(ProtocolError):
        response_text(headers, ended=ended, to_head=False)


def test_trailers() -> None:
    assert check_trailers([(b"a", b"b"), (b"a", b"c")]) == [(b"a", b"b"), (b"a", b"c")]
    for bad in ([(b":path", b"/")], [(b"a", b"b\n")], [(b"A", b"b")], [(b"upgrade", b"h2c")]):
        with pytest.raises(ProtocolError):
            check_trailers(bad)


_BYTES = st.lists(st.sampled_from([*TELLING, b"a", b"good.test", b"/", b"GET"]), max_size=4).map(b"".join)
_NAMES = st.sampled_from(
    b":method :scheme :authority :path :status :x host content-length te cookie connection transfer-encoding upgrade "
    b"expect x X proxy-connection keep-alive".split()
)
_FIELDS = st.lists(st.tuples(_NAMES | _BYTES, _BYTES | st.sampled_from([b"good.test", b"trailers", b"5"])), max_size=3)


@settings(max_examples=examples(400), deadline=None)
@example(extra=[(b"host", b"5"), (b"host", b"5")], at=4, dropped=2, ended=False)
@given(extra=_FIELDS, at=st.integers(0, 4), dropped=st.integers(0, 8), ended=st.booleans())
def test_what_h2_refuses_is_refused_here_and_what_passes_is_one_head(
    extra: Headers, at: int, dropped: int, ended: bool
) -> None:
    """h2's own checks are on; ours must not need them. And no field becomes two in the text."""
    headers = PLAIN[:at] + extra + PLAIN[at:]
    headers = [field for number, field in enumerate(headers) if number != dropped]
    try:
        text = request_text(headers, ended=ended)
    except ProtocolError:
        return
    flags = HeaderValidationFlags(is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False)
    list(validate_headers(headers, flags))  # raises if h2 would not have let it pass
    assert text.head.count(b"\r\n\r\n") == 1
    assert text.head.endswith(b"\r\n\r\n")
    assert b"\n" not in text.head.replace(b"\r\n", b"")
    assert b"\r" not in text.head.replace(b"\r\n", b"")
    try:
        parsed = parse_request_head(text.head)
    except ProtocolError:
        return  # the core is stricter still, about methods for example
    assert parsed.host == (dict(headers).get(b":authority") or dict(headers)[b"host"])
    assert (parsed.chunked, parsed.length) == (text.chunked, text.length)
    assert parsed.target == dict(headers)[b":path"]
    assert not parsed.upgrade
    block = text.head[text.head.index(b"\r\n") :]
    assert not read_fields(block, 256, response=False, keep_length=False).connection


@settings(max_examples=examples(300), deadline=None)
@given(extra=_FIELDS, ended=st.booleans(), to_head=st.booleans())
def test_no_response_becomes_two(extra: Headers, ended: bool, to_head: bool) -> None:
    headers = [(b":status", b"200"), *extra]
    try:
        text = response_text(headers, ended=ended, to_head=to_head)
    except ProtocolError:
        return
    flags = HeaderValidationFlags(is_client=True, is_trailer=False, is_response_header=True, is_push_promise=False)
    list(validate_headers(headers, flags))
    assert text.head.count(b"\r\n\r\n") == 1
    lengths = sum(name == b"content-length" for name, _ in extra)
    framing = (text.length is not None or (lengths > 0 and to_head)) + text.chunked + 1  # and the connection's end
    assert text.head.count(b"\r\n") == 2 + len(extra) - lengths + framing
    try:
        parsed = parse_response_head(text.head, to_head=to_head)
    except ProtocolError:
        return  # two of a field that there is one of
    assert not parsed.keep_alive
    assert parsed.chunked == text.chunked


def test_h2_would_have_refused_too() -> None:
    """The check on the check: h2 raises for what a test above takes for refused by it."""
    flags = HeaderValidationFlags(is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False)
    for bad in ([*PLAIN, (b"x", b"a\r\n")], [*PLAIN, (b"connection", b"x")], [*PLAIN, (b"host", b"evil.test")]):
        with pytest.raises(H2ProtocolError):
            list(validate_headers(bad, flags))


# From text to frames


def read(reader: MessageReader, *pieces: bytes) -> list[Any]:
    """Everything a reader makes of some text; payload that follows payload is joined."""
    parts: list[Part] = []
    for piece in pieces:
        for part in reader.feed(piece):
            if isinstance(part, bytes) and parts and isinstance(parts[-1], bytes):
                parts[-1] += part
            else:
                parts.append(part)
    return [
        ("head", part.headers, part.interim)
        if isinstance(part, Head)
        else ("end", part.trailers)
        if isinstance(part, End)
        else part
        for part in parts
    ]


def test_a_response_in_text() -> None:
    text = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nX-Name: v\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
        b"5\r\nhello\r\n3\r\nyou\r\n0\r\nGrpc-Status: 0\r\n\r\n"
    )
    assert read(ResponseReader(to_head=False), text) == [
        ("head", [(b":status", b"100")], True),
        ("head", [(b":status", b"200"), (b"x-name", b"v")], False),
        b"helloyou",
        ("end", [(b"grpc-status", b"0")]),
    ]


def test_what_follows_a_message_is_dropped() -> None:
    reader = ResponseReader(to_head=False)
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n"
    assert read(reader, text, b"more") == [
        ("head", [(b":status", b"200"), (b"content-length", b"2")], False),
        b"ok",
        ("end", []),
    ]


def test_a_body_that_ends_with_the_connection() -> None:
    reader = ResponseReader(to_head=False)
    assert read(reader, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall") == [
        ("head", [(b":status", b"200")], False),
        b"all",
    ]
    assert reader.ends_with_connection
    assert not reader.done


def test_a_switch_of_protocols_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ResponseReader(to_head=False).feed(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")


@pytest.mark.parametrize("reader", [ResponseReader(to_head=False), RequestReader()], ids=["response", "request"])
def test_trailers_that_have_grown(reader: MessageReader) -> None:
    """What stands in for a value is longer than the value, so no limit for what comes in can be one for this."""
    first = b"POST / HTTP/1.1\r\nHost: good.test" if isinstance(reader, RequestReader) else b"HTTP/1.1 200 OK"
    value = b"a" * 40_000
    text = first + b"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: " + value + b"\r\n\r\n"
    last = [*reader.feed(text[:20_000]), *reader.feed(text[20_000:])][-1]
    assert isinstance(last, End)
    assert last.trailers == [(b"x-t", value)]


def test_a_request_in_text() -> None:
    reader = RequestReader()
    text = (
        b"HEAD /p?q HTTP/1.1\r\nHost: good.test:8443\r\nAuthorization: Bearer x\r\nUser-Agent: y\r\n"
        b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    )
    (head, end) = reader.feed(text)
    assert isinstance(head, Head)
    assert isinstance(end, End)
    assert head.headers == [
        (b":method", b"HEAD"),
        (b":scheme", b"https"),
        (b":authority", b"good.test:8443"),
        (b":path", b"/p?q"),
        (b"authorization", b"Bearer x"),
        (b"user-agent", b"y"),
        (b"content-length", b"0"),
    ]
    assert reader.to_head


def test_secrets_stay_out_of_the_compression_tables() -> None:
    fields = b"Authorization: a\r\nX-Api-Key: b\r\nX-Goog-Token: c\r\nCookie: d\r\nUser-Agent: e\r\nAccept: f\r\n"
    (head, _) = RequestReader().feed(b"GET / HTTP/1.1\r\nHost: good.test\r\n" + fields + b"\r\n")
    assert isinstance(head, Head)
    guarded = [name for name, value in head.headers if value in (b"a", b"b", b"c", b"d")]
    assert guarded == [b"authorization", b"x-api-key", b"x-goog-token", b"cookie"]
    assert [field[0] for field in head.headers if isinstance(field, NeverIndexedHeaderTuple)] == guarded


@settings(max_examples=examples(150), deadline=None)
@given(points=cut_points)
def test_how_the_text_is_cut_changes_nothing(points: list[int]) -> None:
    text = (
        b"HTTP/1.1 103 X\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\na\r\n0123456789\r\n0\r\nx: y\r\n\r\n"
    )
    assert read(ResponseReader(to_head=False), *cut(text, points)) == read(ResponseReader(to_head=False), text)


# Frames


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def read_frames(*pieces: bytes, preface: bool = False) -> list[Any]:
    reader = FrameReader(1000, preface=preface)
    found: list[Any] = []
    for piece in pieces:
        reader.add(piece)
        try:
            if (begin := reader.take_preface()) is not None:
                found.append(begin)
            while (each := reader.next()) is not None:
                found.append(each)
        except Http2Error as error:
            return [*found, error.code]
    return found


@settings(max_examples=examples(150), deadline=None)
@given(points=cut_points, changes=mutations(max_size=2))
def test_how_frames_are_cut_changes_nothing(points: list[int], changes: list[Any]) -> None:
    good = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 0, 1, b"ab") + frame(9, 4, 1, b"c")
    data = mutate(good + frame(0, 1, 1, b"x" * 50), changes)
    assert read_frames(*cut(data, points), preface=True) == read_frames(data, preface=True)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, 0, 1, b"a") + frame(0, 0, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(1, 0, 1, b"a") + frame(9, 4, 3, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(1, 0, 1, b"a") + frame(1, 4, 1, b"a"), ErrorCodes.PROTOCOL_ERROR),
        (frame(9, 4, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(1, 4, 1, b"a") + frame(9, 4, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(5, 4, 1, b"abcd"), ErrorCodes.PROTOCOL_ERROR),
        (frame(1, 0, 1, b"") + frame(9, 0, 1, b"") * 33, ErrorCodes.ENHANCE_YOUR_CALM),
        (frame(1, 0, 1, b"a" * 501) + frame(9, 0, 1, b"a" * 500), ErrorCodes.ENHANCE_YOUR_CALM),
        (b"\x00\x40\x01" + bytes(6), ErrorCodes.FRAME_SIZE_ERROR),
    ],
)
def test_frames_after_which_nothing_can_be_trusted(data: bytes, code: ErrorCodes) -> None:
    assert read_frames(data)[-1] == code


def test_a_header_block_in_many_frames() -> None:
    data = frame(1, 1, 1, b"a") + frame(9, 0, 1, b"b") * 31 + frame(9, 4, 1, b"c") + frame(1, 4, 3, b"d")
    assert [each.stream_id for each in read_frames(data)] == [1] * 33 + [3]


def test_goaway_and_reset_by_hand() -> None:
    (goaway, reset) = read_frames(encode_goaway(7, 11) + encode_reset(5, 8))
    assert parse_goaway(goaway) == (7, 11)
    assert reset.raw == frame(3, 0, 5, b"\0\0\0\x08")
    for bad in (frame(7, 0, 0, b"short"), frame(7, 0, 1, bytes(8))):
        with pytest.raises(Http2Error):
            parse_goaway(read_frames(bad)[0])
