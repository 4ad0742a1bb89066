"""Secrets at the gateway: what their tests begin with."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import brotli
import pytest
from backports import zstd

from tests.support.clients.answers import Answer, parse_answer
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted

ALL = ["headers", "basic", "query", "path", "body"]
REAL = VALUE.encode()
ESCAPED = b"sk-real%2Fvalue%2Bof%3Dthe%20secret"
every_door = pytest.mark.parametrize("door", DOORS)


def for_good(**settings: Any) -> dict[str, dict[str, Any]]:
    return {"KEY": {"hosts": ["good.test private"], **settings}}


def ask(scene: Intercepted, request: bytes, method: str = "GET", *, door: str = "connect") -> Answer:
    """The answer to one request, in which KEY stands for the placeholder."""
    head, _, body = request.partition(b"\r\n\r\n")
    with scene.open(door=door) as conn:
        conn.sendall(b"%b\r\nConnection: close\r\n\r\n%b" % (head, body))
        received = bytearray()
        while data := conn.recv(65536):
            received += data
    return parse_answer(bytes(received), method)


def pack(coding: str, data: bytes) -> bytes:
    if coding == "gzip":
        return gzip.compress(data)
    if coding == "deflate":
        return zlib.compress(data)
    return bytes(brotli.compress(data)) if coding == "br" else zstd.compress(data)


CODINGS = ["gzip", "deflate", "br", "zstd"]
