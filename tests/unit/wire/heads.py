"""Heads for tests, and what refuses one."""

from __future__ import annotations

import pytest

from exeat.errors import ProtocolError
from exeat.wire.http1 import parse_request_head, parse_response_head


def request(
    *fields: bytes, line: bytes = b"POST http://good.test/ HTTP/1.1", host: bytes | None = b"good.test"
) -> bytes:
    lines = [line] if host is None else [line, b"Host: " + host]
    return b"\r\n".join([*lines, *fields]) + b"\r\n\r\n"


def response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n"


def refused_request(head: bytes) -> int:
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(head)
    return caught.value.status


def refused_response(head: bytes, *, to_head: bool = False) -> int:
    with pytest.raises(ProtocolError) as caught:
        parse_response_head(head, to_head=to_head)
    return caught.value.status
