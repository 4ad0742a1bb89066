"""Header fields: the parser that is installed is checked before it is trusted, and lists are read as RFC 9110 has them.

Which fields are judged, dropped and passed on is shown for whole heads, in test_wire_http1.py.
"""

from __future__ import annotations

import importlib.util

import httptools
import pytest

from exeat.errors import ProtocolError
from exeat.wire import fields
from exeat.wire.fields import read_fields, tokens
from exeat.wire.http1 import parse_response_head


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
    block = b"\r\nHost: a\r\nContent-Length: 3\r\nProxy-Status: x\r\nA: b\r\n\r\n"
    for _ in range(2):
        assert read_fields(block, 9, response=False, keep_length=False).passed == b"\r\nA: b"
        assert read_fields(block, 9, response=True, keep_length=True).passed == (
            b"\r\nContent-Length: 3\r\nProxy-Status: x\r\nA: b"
        )
        with pytest.raises(ProtocolError, match="more than 3"):
            read_fields(block, 3, response=False, keep_length=False)


def test_a_head_does_not_change_what_is_kept() -> None:
    """A 304 has no body whatever it says; the next answer with the same lines has."""
    lines = b"\r\nContent-Length: 3\r\n\r\n"
    for _ in range(2):
        assert parse_response_head(b"HTTP/1.1 304 X" + lines).length == 0
        assert parse_response_head(b"HTTP/1.1 200 X" + lines).length == 3
