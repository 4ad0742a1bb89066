"""A list in a header field is read name by name, so one head could keep all others waiting for 10 ms."""

from __future__ import annotations

import pytest

from exeat.errors import ProtocolError
from exeat.wire.http1 import parse_request_head, parse_response_head

pytestmark = pytest.mark.threat("T-I6")

MOST = 100


def lines(name: str, count: int) -> bytes:
    """Header lines with so many members in a list."""
    match name:
        case "one Connection":
            return b"Connection: " + b",".join([b"a"] * count) + b"\r\n"
        case "many Connections":
            return b"Connection: a\r\n" * count
        case "empty members":
            return b"Connection: x" + b"," * (count - 1) + b"\r\n"
        case _:
            return b"TE: " + b",".join([b"a"] * count) + b"\r\n"


def read_both(fields: bytes) -> tuple[bool, bool]:
    """Is it taken in a request, and in a response?"""
    try:
        parse_request_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n", max_headers=40_000)
        in_request = True
    except ProtocolError:
        in_request = False
    try:
        parse_response_head(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n", to_head=False)
    except ProtocolError:
        return in_request, False
    return in_request, True


@pytest.mark.parametrize("name", ["one Connection", "many Connections", "empty members", "TE"])
def test_a_list_in_a_field_is_short(name: str) -> None:
    assert read_both(lines(name, MOST)) == (True, True)
    assert read_both(lines(name, MOST + 1)) == (False, False)
    assert read_both(lines(name, 30_000)) == (False, False)
