"""Framing and lines of heads: each row is one attack or one ordinary message, with the verdict it must get."""

from __future__ import annotations

import pytest

from exeat.wire.http1 import parse_request_head, parse_response_head
from tests.unit.wire.heads import refused_request, refused_response, request, response

# Fields that frame a message in more than one way, or in a way that int() and strip() would forgive.
AMBIGUOUS_FRAMING = [
    [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
    [b"transfer-encoding: chunked", b"CONTENT-LENGTH: 0"],
    [b"Content-Length: 5", b"Content-Length: 6"],
    [b"Content-Length: 5", b"Content-Length: 5"],
    [b"Content-Length: 5", b"content-length: 5"],
    [b"Content-Length: 5, 5"],
    [b"Content-Length: 5,"],
    [b"Content-Length: +5"],
    [b"Content-Length: -5"],
    [b"Content-Length: -0"],
    [b"Content-Length: 5 5"],
    [b"Content-Length: 1_0"],
    [b"Content-Length: 0x5"],
    [b"Content-Length: 5.0"],
    [b"Content-Length: 5e1"],
    [b"Content-Length: 5;x"],
    [b'Content-Length: "5"'],
    [b"Content-Length: \xd9\xa3"],
    [b"Content-Length: \xef\xbc\x95"],
    [b"Content-Length: \xb2"],
    [b"Content-Length: 5\xa0"],
    [b"Content-Length: \x0b5"],
    [b"Content-Length: 5\x0c"],
    [b"Content-Length: 9223372036854775808"],
    [b"Content-Length: 9223372036854775807"],
    [b"Content-Length: 18446744073709551616"],
    [b"Content-Length: 18446744073709551621"],
    [b"Content-Length: " + b"0" * 19 + b"5"],
    [b"Content-Length: " + b"9" * 4_000],
    [b"Content-Length:"],
    [b"Content-Length: "],
    [b"Content-Length : 5"],
    [b"Content-Length\t: 5"],
    [b"Content-Length"],
    [b" Content-Length: 5"],
    [b"Transfer-Encoding : chunked"],
    [b"Transfer-Encoding\t: chunked"],
    [b"Transfer-Encoding: \x0bchunked"],
    [b"Transfer-Encoding: chunked\x0b"],
    [b"Transfer-Encoding: \x0cchunked"],
    [b"Transfer-Encoding: \xa0chunked"],
    [b"Transfer-Encoding: chunked, x"],
    [b"Transfer-Encoding: x, chunked"],
    [b"Transfer-Encoding: gzip, chunked"],
    [b"Transfer-Encoding: chunked, gzip"],
    [b"Transfer-Encoding: chunked, identity"],
    [b"Transfer-Encoding: chunked, chunked"],
    [b"Transfer-Encoding: chunked,"],
    [b"Transfer-Encoding: , chunked"],
    [b"Transfer-Encoding: chunked;q=1"],
    [b'Transfer-Encoding: "chunked"'],
    [b"Transfer-Encoding: chunke"],
    [b"Transfer-Encoding: chunkedd"],
    [b"Transfer-Encoding: xchunked"],
    [b"Transfer-Encoding: gzip"],
    [b"Transfer-Encoding: identity"],
    [b"Transfer-Encoding:"],
    [b"Transfer-Encoding: "],
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"],
    [b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding:"],
    [b"Transfer-Encoding:", b" chunked"],
    [b"X: y\r\n Transfer-Encoding: chunked"],
    [b"Transfer-Encoding\0: chunked"],
    [b"Transfer-Encoding\xff: chunked"],
    [b"\x0bTransfer-Encoding: chunked"],
]


@pytest.mark.parametrize("fields", AMBIGUOUS_FRAMING, ids=repr)
def test_a_request_whose_end_two_readers_could_see_differently_is_bad(fields: list[bytes]) -> None:
    """B2, B3: smuggling needs an ambiguity, and none is repaired."""
    assert refused_request(request(*fields)) == 400


@pytest.mark.parametrize("fields", AMBIGUOUS_FRAMING, ids=repr)
@pytest.mark.parametrize("to_head", [False, True])
def test_a_response_whose_end_two_readers_could_see_differently_is_a_bad_gateway(
    fields: list[bytes], to_head: bool
) -> None:
    """The server's framing is trusted no more than the client's, even where no body may follow."""
    assert refused_response(response(*fields), to_head=to_head) == 502


@pytest.mark.parametrize(
    ("fields", "length", "chunked"),
    [
        ([], None, False),
        ([b"Content-Length: 0"], 0, False),
        ([b"Content-Length: 5"], 5, False),
        ([b"content-LENGTH:5"], 5, False),
        ([b"Content-Length: \t5\t "], 5, False),
        ([b"Content-Length: 005"], 5, False),
        ([b"Content-Length: 999999999999999999"], 10**18 - 1, False),
        ([b"Transfer-Encoding: chunked"], None, True),
        ([b"transfer-encoding:Chunked"], None, True),
        ([b"TRANSFER-ENCODING: \tCHUNKED"], None, True),
        # Another name is another field, for us and for any reader of the tokens.
        ([b"Content_Length: 5"], None, False),
        ([b"Transfer_Encoding: chunked"], None, False),
        ([b"X-Content-Length: 7", b"Content-Length: 5"], 5, False),
    ],
    ids=repr,
)
def test_framing_that_has_one_meaning_is_accepted(fields: list[bytes], length: int | None, chunked: bool) -> None:
    """A length, chunks, or neither; and what frames the message is not passed on as it came."""
    head = parse_request_head(request(*fields))
    assert (head.length, head.chunked) == (length, chunked)
    assert head.has_body is (chunked or bool(length))
    assert not {name.lower() for name, _ in head.headers} & {b"content-length", b"transfer-encoding", b"host"}
    answer = parse_response_head(response(*fields))
    assert (answer.length, answer.chunked) == (length, chunked)
    assert b"transfer-encoding" not in {name.lower() for name, _ in answer.headers}


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_transfer_encoding_needs_http_1_1(version: bytes) -> None:
    """RFC 9112 section 6.1: chunks in an HTTP/1.0 message are faulty framing."""
    ask = request(b"Transfer-Encoding: chunked", line=b"POST http://good.test/ HTTP/" + version)
    answer = response(b"Transfer-Encoding: chunked", line=b"HTTP/" + version + b" 200 OK")
    if version == b"1.1":
        assert parse_request_head(ask).chunked
        assert parse_response_head(answer).chunked
    else:
        assert refused_request(ask) == 400
        assert refused_response(answer) == 502


GOOD_REQUEST = request(b"Accept: */*", b"Content-Length: 5")
GOOD_RESPONSE = response(b"Server: x", b"Content-Length: 5")


@pytest.mark.parametrize("index", range(GOOD_REQUEST.count(b"\r\n")))
@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n\n", b"\r\n\r", b"\r\n ", b"\r\n\t"])
def test_no_line_may_end_in_anything_but_crlf(index: int, ending: bytes) -> None:
    """Bare LF, bare CR and folding are refused in every position (B3), in both directions."""
    parts = GOOD_REQUEST.split(b"\r\n")
    damaged = b"\r\n".join(parts[: index + 1]) + ending + b"\r\n".join(parts[index + 1 :])
    assert refused_request(damaged) == 400
    parts = GOOD_RESPONSE.split(b"\r\n")
    index = min(index, len(parts) - 2)
    damaged = b"\r\n".join(parts[: index + 1]) + ending + b"\r\n".join(parts[index + 1 :])
    assert refused_response(damaged) == 502


@pytest.mark.parametrize("byte", [b"\n", b"\r", b"\0"])
def test_lf_cr_and_nul_are_refused_at_every_offset(byte: bytes) -> None:
    """There is no place in a head where one of these is harmless (A1, B3)."""
    for offset in range(len(GOOD_REQUEST) + 1):
        assert refused_request(GOOD_REQUEST[:offset] + byte + GOOD_REQUEST[offset:]) == 400, offset
    for offset in range(len(GOOD_RESPONSE) + 1):
        assert refused_response(GOOD_RESPONSE[:offset] + byte + GOOD_RESPONSE[offset:]) == 502, offset


def test_every_proper_prefix_and_every_extension_of_a_head_is_refused() -> None:
    """A head is whole or it is nothing: neither a cut one nor a second message behind it is read."""
    for end in range(len(GOOD_REQUEST)):
        assert refused_request(GOOD_REQUEST[:end]) == 400, end
    for end in range(len(GOOD_RESPONSE)):
        assert refused_response(GOOD_RESPONSE[:end]) == 502, end
    for extra in (b"x", b"hello", b"\r\n", b"\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", GOOD_REQUEST):
        assert refused_request(GOOD_REQUEST + extra) == 400, extra
        assert refused_request(request(line=b"GET http://good.test/ HTTP/1.0", host=None) + extra) == 400, extra
        assert refused_response(GOOD_RESPONSE + extra) == 502, extra
        assert refused_request(extra + GOOD_REQUEST) == 400, extra
        assert refused_response(extra + GOOD_RESPONSE) == 502, extra


@pytest.mark.parametrize(
    "line",
    [
        b"GET /",
        b"GET http://good.test/",
        b"GET http://good.test/ HTTP/0.9",
        b"GET http://good.test/ HTTP/1.2",
        b"GET http://good.test/ HTTP/1.10",
        b"GET http://good.test/ HTTP/01.1",
        b"GET http://good.test/ HTTP/2",
        b"GET http://good.test/ HTTP/2.0",
        b"GET http://good.test/ HTTP/3.0",
        b"GET http://good.test/ HTTP/1",
        b"GET http://good.test/ HTTP/1.",
        b"GET http://good.test/ HTTP/1,1",
        b"GET http://good.test/ http/1.1",
        b"GET http://good.test/ HTTPS/1.1",
        b"GET http://good.test/ RTSP/1.0",
        b"OPTIONS http://good.test/ RTSP/1.0",
        b"SOURCE http://good.test/ ICE/1.0",
        b"PRI * HTTP/2.0",
        b"PRI * HTTP/1.1",
        b"get http://good.test/ HTTP/1.1",
        b"Get http://good.test/ HTTP/1.1",
        b"GETT http://good.test/ HTTP/1.1",
        b"G\xc9T http://good.test/ HTTP/1.1",
        b"GET  http://good.test/ HTTP/1.1",
        b"GET http://good.test/  HTTP/1.1",
        b"GET http://good.test/ HTTP/1.1 ",
        b" GET http://good.test/ HTTP/1.1",
        b"\r\nGET http://good.test/ HTTP/1.1",
        b"GET\thttp://good.test/ HTTP/1.1",
        b"GET http://good.test/\tHTTP/1.1",
        b"GET\x0bhttp://good.test/ HTTP/1.1",
        b"GET http://good.test/\x0c HTTP/1.1",
        b"GET http://good.test/\xa0HTTP/1.1",
        b"GET http://good.test/a b HTTP/1.1",
        b"GET http://good.test/\x7f HTTP/1.1",
        b"GET http://good.test/\x1b[2J HTTP/1.1",
        b"GET HTTP/1.1",
        b"GET  HTTP/1.1",
        b"http://good.test/ HTTP/1.1",
        b"HTTP/1.1 200 OK",
        b"SSH-2.0-OpenSSH_9.6",
        b"",
        b":",
    ],
)
def test_request_lines_of_other_protocols_versions_and_spellings_are_bad(line: bytes) -> None:
    """B8: HTTP/1.0 and HTTP/1.1 in the one spelling of RFC 9112, and nothing that resembles them."""
    assert refused_request(request(line=line)) == 400
    assert refused_request(request(line=line, host=None)) == 400


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/0.9 200 OK",
        b"HTTP/1.2 200 OK",
        b"HTTP/2.0 200 OK",
        b"HTTP/2 200 OK",
        b"HTTP/1 200 OK",
        b"http/1.1 200 OK",
        b"RTSP/1.0 200 OK",
        b"RTSP/1.1 200 OK",
        b"ICE/1.0 200 OK",
        b"ICY 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1\t200 OK",
        b"HTTP/1.1 200\tOK",
        b"HTTP/1.1 200OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 +20 OK",
        b"HTTP/1.1 2_0 OK",
        b"HTTP/1.1 \xd9\xa2\xd9\xa0\xd9\xa0 OK",
        b"HTTP/1.1 000 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 600 OK",
        b"HTTP/1.1 999 OK",
        b"HTTP/1.1 200 O\x01K",
        b"HTTP/1.1 200 O\x0bK",
        b"HTTP/1.1 200 \x1b[2J",
        b"HTTP/1.1 200 O\x7fK",
        b" HTTP/1.1 200 OK",
        b"\r\nHTTP/1.1 200 OK",
        b"HTTP/1.1",
        b"200 OK",
        b"GET / HTTP/1.1",
        b"<html>",
        b"",
    ],
)
def test_status_lines_of_other_protocols_versions_and_spellings_are_a_bad_gateway(line: bytes) -> None:
    """What is no HTTP/1 answer is not turned into one."""
    assert refused_response(response(line=line)) == 502


@pytest.mark.parametrize(
    ("line", "status", "reason", "minor"),
    [
        (b"HTTP/1.1 200 OK", 200, b"OK", 1),
        (b"HTTP/1.0 404 Not Found", 404, b"Not Found", 0),
        (b"HTTP/1.1 200 ", 200, b"", 1),
        (b"HTTP/1.1 200", 200, b"", 1),  # not in the grammar, but sent by servers, and h11 takes it too
        (b"HTTP/1.1 599 caf\xe9\tbar", 599, b"caf\xe9\tbar", 1),
    ],
)
def test_status_lines_are_read_with_and_without_a_reason(line: bytes, status: int, reason: bytes, minor: int) -> None:
    """The reason may be any text without controls, or be missing."""
    answer = parse_response_head(response(line=line))
    assert (answer.status, answer.reason, answer.minor) == (status, reason, minor)


@pytest.mark.parametrize(
    "name", [b"", b"X Y", b"X(", b"X\x80", b"\xc3\xa9", b"X\0", b"X\x7f", b'"X"', b"X/Y", b"X@Y", b"X "]
)
def test_field_names_are_tokens(name: bytes) -> None:
    """Anything else in a name is read in as many ways as there are readers."""
    assert refused_request(request(name + b": y")) == 400
    assert refused_response(response(name + b": y")) == 502


@pytest.mark.parametrize("code", range(256))
def test_field_values_hold_text_and_no_controls(code: int) -> None:
    """Visible ASCII, space, tab and 8-bit bytes pass unchanged; every control is refused (RFC 9110 section 5.5)."""
    value = b"a" + bytes((code,)) + b"b"
    if code == 9 or (code >= 0x20 and code != 0x7F):
        assert parse_request_head(request(b"X: " + value)).headers == [(b"X", value)]
        assert parse_response_head(response(b"X: " + value)).headers == [(b"X", value)]
    else:
        assert refused_request(request(b"X: " + value)) == 400
        assert refused_response(response(b"X: " + value)) == 502
