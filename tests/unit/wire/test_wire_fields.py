"""Header fields: the parser that is installed is checked before it is trusted, and lists are read as RFC 9110 has them.

Which fields are judged, dropped and passed on is shown for whole heads, in test_wire_http1_fields.py.
"""

from __future__ import annotations

import importlib.util

import httptools
import pytest

from exeat.errors import ProtocolError
from exeat.wire import fields
from exeat.wire.fields import Fields, KnownFields, LastFields, read_fields, tokens
from exeat.wire.http1 import KnownHeads, parse_request_head, parse_response_head


class Lenient:
    """A parser that takes everything."""

    def __init__(self, protocol: object) -> None:
        pass

    def feed_data(self, data: bytes) -> None:
        pass


@pytest.mark.parametrize("name", ["HttpRequestParser", "HttpResponseParser"])
def test_a_lenient_parser_is_noticed_before_anything_is_served(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strictness that is left to llhttp is not assumed of the build that happens to be installed."""
    with monkeypatch.context() as patched:
        patched.setattr(httptools, name, Lenient)
        spec = importlib.util.find_spec("exeat.wire.fields")
        assert spec is not None
        assert spec.loader is not None
        with pytest.raises(ImportError, match="httptools"):
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert fields.read_fields is read_fields


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", ()),
        (b" , ,\t", ()),
        (b"close", (b"close",)),
        (b"Close,keep-ALIVE", (b"close", b"keep-alive")),
        (b",a,\tb ,,", (b"a", b"b")),
    ],
)
def test_lists_of_tokens_may_have_empty_members(value: bytes, expected: tuple[bytes, ...]) -> None:
    """RFC 9110 section 5.6.1.2: a recipient must ignore them; the case of a token does not matter."""
    assert tokens(value) == expected


@pytest.mark.parametrize("value", [b"a b", b'"a"', b"a;b", b"a\x0b", b"\xa0", b"\xe9", b"a/b", b"a=b"])
def test_a_list_of_anything_else_is_refused(value: bytes) -> None:
    """No member is guessed at."""
    with pytest.raises(ProtocolError):
        tokens(value)


def test_kept_fields_are_not_mixed_up_between_heads() -> None:
    """The same lines in a request, an answer, and with another limit are read as what they are, and again the same."""
    block = b"\r\nHost: a\r\nContent-Length: 3\r\nProxy-Connection: x\r\nAccept: b\r\n\r\n"
    known = KnownFields()
    for _ in range(2):
        assert known.read(block, 9, response=False, keep_length=False).passed == b"\r\nAccept: b"
        assert known.read(block, 9, response=True, keep_length=True).passed == b"\r\nContent-Length: 3\r\nAccept: b"
        with pytest.raises(ProtocolError, match="more than 3"):
            known.read(block, 3, response=False, keep_length=False)


def test_a_head_does_not_change_what_is_kept() -> None:
    """A 304 has no body whatever it says; the next answer with the same lines has."""
    lines = b"\r\nContent-Length: 3\r\n\r\n"
    known = KnownHeads()
    for _ in range(2):
        assert parse_response_head(b"HTTP/1.1 304 X" + lines, known=known).length == 0
        assert parse_response_head(b"HTTP/1.1 200 X" + lines, known=known).length == 3


def test_only_lines_that_say_nothing_in_confidence_are_kept() -> None:
    """One line among them that is not known to be harmless, and none of them is. Names have no case."""
    known = KnownFields()
    usual = b"\r\nHOST: a\r\nuser-agent: b"

    def again(block: bytes) -> bool:
        one, two = (known.read(block, 99, response=False, keep_length=False) for _ in range(2))
        assert one.__dict__ == two.__dict__
        return one is two

    assert again(usual + b"\r\n\r\n")
    assert again(b"\r\n\r\n")
    for name in (b"Authorization", b"proxy-authorization", b"COOKIE", b"Cookie2", b"X-Api-Key", b"Accept-Signature"):
        for block in (b"\r\n%b: c%b\r\n\r\n" % (name, usual), b"%b\r\n%b: c\r\n\r\n" % (usual, name)):
            assert not again(block)
    assert not again(usual + b"\r\nAccept: " + b"x" * 2048 + b"\r\n\r\n")


def test_a_bounded_number_of_lines_is_kept() -> None:
    """The oldest make room."""
    known = KnownFields()
    blocks = [b"\r\nHost: %d\r\n\r\n" % number for number in range(513)]
    read = [known.read(block, 9, response=False, keep_length=False) for block in blocks]
    assert known.read(blocks[512], 9, response=False, keep_length=False) is read[512]
    assert known.read(blocks[1], 9, response=False, keep_length=False) is read[1]
    assert known.read(blocks[0], 9, response=False, keep_length=False) is not read[0]


def test_whole_answers_are_kept_on_the_same_terms() -> None:
    """Read again they are what they were, to whatever request; none with a line that may hold a credential is kept."""
    known = KnownHeads()
    usual = b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: "a"\r\n\r\n'
    first = parse_response_head(usual, known=known)
    assert parse_response_head(usual, known=known) is first
    assert parse_response_head(usual, known=known, to_head=True).length == 0
    assert parse_response_head(usual, known=known, ours=True) is not first
    with pytest.raises(ProtocolError, match="more than 1 header"):
        parse_response_head(usual, known=known, max_headers=1)
    for line in (b"Set-Cookie: a=b", b"Authentication-Info: c", b"X-Token: d"):
        told = usual.replace(b"ETag", line + b"\r\nETag")
        assert parse_response_head(told, known=known) is not parse_response_head(told, known=known)
    parse_response_head(usual.replace(b"OK", b"Bearer abc"), known=known)
    assert set(known.responses) == {(usual, 256, False), (usual, 256, True)}
    for number in range(600):
        parse_response_head(usual.replace(b'"a"', b'"%d"' % number), known=known)
    assert len(known.responses) == 512


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"CONNECT", b"TRACE", b"GETS"])
@pytest.mark.parametrize("target", [b"/a", "/\u00e4".encode(), b"/\xff"])
@pytest.mark.parametrize(
    "lines",
    [
        b"Host: a",
        b"Accept: b",
        b"Host: a\r\nConnection: close",
        b"Host: a\r\nTE: trailers",
        b"Host: a\r\nContent-Length: 3",
        b"Host: a\r\nTransfer-Encoding: chunked",
        b"Host: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        b"Host: a\r\nExpect: 100-continue",
        b"Host: a\r\nExpect: b",
    ],
)
def test_a_request_is_the_same_whatever_was_read_before(
    method: bytes, target: bytes, version: bytes, lines: bytes
) -> None:
    """Lines that are known say nothing of the first line, and spare it no check."""

    def read(known: KnownHeads | LastFields | None, method: bytes, target: bytes, version: bytes) -> object:
        try:
            return parse_request_head(b"%b %b HTTP/%b\r\n%b\r\n\r\n" % (method, target, version, lines), known=known)
        except ProtocolError as error:
            return error.status, error.public

    fresh = read(None, method, target, version)
    for known in (KnownHeads(), LastFields(KnownHeads())):
        for before in ((b"GET", b"/", b"1.1"), (b"GET", b"/", b"1.0"), (method, target, version)):
            read(known, *before)
            assert read(known, method, target, version) == fresh


def test_the_last_lines_of_a_client_are_read_once_whatever_is_in_them() -> None:
    """For that client alone, as long as they are the same bytes under the same limit, and not too many."""
    shared = KnownFields()
    last, other = LastFields(shared), LastFields(shared)

    def read(known: LastFields, block: bytes, most: int = 9) -> Fields:
        return known.read(block, most, response=False, keep_length=False)

    block = b"\r\nHost: a\r\nAuthorization: Bearer b\r\n\r\n"
    first = read(last, block)
    assert read(last, block) is first
    assert read(other, block) is not first
    with pytest.raises(ProtocolError, match="more than 1"):
        read(last, block, 1)
    assert read(last, block) is first, "what is refused leaves nothing"
    second = read(last, block.replace(b"b\r", b"c\r"))
    assert second.passed == b"\r\nAuthorization: Bearer c"
    assert read(last, block) is not first, "only the last"
    long = block.replace(b"Bearer b", b"Bearer " + b"b" * 2_048)
    assert read(last, long) is not read(last, long)


def test_proxy_status_is_kept_only_in_what_we_have_written() -> None:
    """From anybody else it would be taken for ours."""
    head = b"HTTP/1.1 200 X\r\nProxy-Status: exeat\r\nA: b\r\n\r\n"
    assert parse_response_head(head).passed == b"\r\nA: b"
    assert parse_response_head(head, known=KnownHeads()).passed == b"\r\nA: b"
    assert parse_response_head(head, ours=True).passed == b"\r\nProxy-Status: exeat\r\nA: b"
