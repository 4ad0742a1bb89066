"""A list in a header field is read name by name, so one head could keep all others waiting for 10 ms."""

from __future__ import annotations

import pytest

from exeat.errors import ProtocolError
from exeat.wire.http1 import parse_request_head, parse_response_head

MOST = 100
LISTS = {
    "one Connection": lambda count: b"Connection: " + b",".join([b"a"] * count) + b"\r\n",
    "many Connections": lambda count: b"Connection: a\r\n" * count,
    "empty members": lambda count: b"Connection: x" + b"," * (count - 1) + b"\r\n",
    "TE": lambda count: b"TE: " + b",".join([b"a"] * count) + b"\r\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_in_a_field_is_short(name: str) -> None:
    for count, passes in ((MOST, True), (MOST + 1, False), (30_000, False)):
        lines = LISTS[name](count) + b"\r\n"
        for read in (
            lambda lines=lines: parse_request_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + lines, max_headers=40_000),
            lambda lines=lines: parse_response_head(b"HTTP/1.1 200 OK\r\n" + lines, to_head=False),
        ):
            if passes:
                read()
            else:
                with pytest.raises(ProtocolError):
                    read()
