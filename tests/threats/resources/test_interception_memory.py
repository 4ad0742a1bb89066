"""Memory that a program inside, or a server, makes the gateway hold by looking into what they send."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import socket
import time
from collections.abc import Callable

import brotli
import pytest
from backports import zstd

from tests.support.gateways.gate import read_until
from tests.support.gateways.intercepted import StartIntercepted, for_good
from tests.support.origins.raw import RawOrigin, read_head

pytestmark = pytest.mark.threat("T-I4")

MB = 1024 * 1024
EACH = 15 * MB  # below what is taken for a bomb
MANY = 12
PAIR = {"aws_key_id": "AWS_ACCESS_KEY_ID"}


def resident() -> int:
    """What is in use: what was freed before is given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def grown(before: int, work: Callable[[], None]) -> int:
    """How much more memory there is after the work, once it has stopped growing."""
    work()
    last = resident()
    for _ in range(50):
        time.sleep(0.1)
        now = resident()
        if abs(now - last) < MB:
            break
        last = now
    return resident() - before


def unended_zstd(size: int = EACH) -> bytes:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 23, zstd.CompressionParameter.compression_level: 3}
    packer = zstd.ZstdCompressor(options=options)
    return packer.compress(bytes(size)) + packer.flush(packer.FLUSH_BLOCK)


def unended_brotli(size: int = EACH) -> bytes:
    packer = brotli.Compressor(quality=5, lgwin=24)
    return bytes(packer.process(bytes(size)) + packer.flush())


@pytest.mark.parametrize(
    ("coding", "body"),
    [("zstd", unended_zstd()), ("br", unended_brotli()), ("gzip", b"\x1f\x8b\x08")],
    ids=["zstd", "br", "gzip"],
)
def test_request_bodies_that_stall_while_unpacked(
    coding: str, body: bytes, start_intercepted: StartIntercepted
) -> None:
    """A few hundred bytes make a decoder fill its window, of 8 or 16 MB. Any allowed host will do, over plain HTTP too.

    8,192 connections may be open: 90 GB. gzip, whose window is 32 KB, is for comparison.
    """
    scene = start_intercepted(["other.test:80 private"], secrets=for_good(), plain_handler=_take)
    with contextlib.ExitStack() as stack:

        def work() -> None:
            for _ in range(MANY):
                conn = stack.enter_context(scene.gate.connect())
                conn.sendall(
                    b"POST http://other.test/ HTTP/1.1\r\nHost: other.test\r\nContent-Encoding: %b\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (coding.encode(), len(body), body)
                )
            while scene.plain.everything.count(body) < MANY:
                time.sleep(0.05)

        assert len(body) < 20_000
        assert grown(resident(), work) < MANY * MB


def _take(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    while origin.read(conn, raw):
        pass


@pytest.mark.parametrize("window", [18, 22])
def test_responses_that_are_unpacked_for_a_client_that_does_not_read(
    window: int, start_intercepted: StartIntercepted
) -> None:
    """A few bytes of a server's become 15 MB for a client, at once and whether it reads or not.

    The window itself, which no decoder can do without, is counted apart: 4 MB is what encoders take by themselves.
    """
    packed = brotli.compress(bytes(EACH), lgwin=window)

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            conn.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                % (len(packed), packed)
            )

    scene = start_intercepted(secrets=for_good(), handler=handle)
    request = b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder()
    with contextlib.ExitStack() as stack:

        def work() -> None:
            for _ in range(MANY):
                conn = stack.enter_context(scene.open())
                conn.sendall(request)
                read_until(conn, b"\r\n\r\n")  # it has begun, and no one reads on

        assert len(packed) < 20_000
        assert grown(resident(), work) < MANY * (3 * MB + (1 << window))


def test_bodies_that_are_read_whole_to_be_signed(start_intercepted: StartIntercepted) -> None:
    """Each may have 16 MB, and may wait for its last byte for a quarter of an hour."""
    secrets = {
        "AWS_ACCESS_KEY_ID": {"hosts": ["good.test private"], "value": "AKIAEXAMPLEEXAMPLE00"},
        "AWS_SECRET_ACCESS_KEY": {"hosts": ["good.test private"], "value": "not/a/real/key/0123456789", **PAIR},
    }
    scene = start_intercepted(secrets=secrets)
    key = scene.placeholder("AWS_ACCESS_KEY_ID")
    head = (
        b"POST / HTTP/1.1\r\nHost: good.test\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256"
        b" Credential=%b/20260101/eu-west-1/sts/aws4_request, SignedHeaders=host;x-amz-date, Signature=%b\r\n"
        b"Content-Length: %d\r\n\r\n" % (key, b"0" * 64, EACH)
    )
    body = bytes(EACH - 1)
    with contextlib.ExitStack() as stack:

        def work() -> None:
            for _ in range(MANY):
                conn = stack.enter_context(scene.open())
                conn.settimeout(20)
                with contextlib.suppress(OSError):  # refused is as good
                    conn.sendall(head + body)

        assert grown(resident(), work) < MANY * EACH // 2


def test_signed_bodies_are_read_at_all(start_intercepted: StartIntercepted) -> None:
    """The control of the test before."""
    secrets = {
        "AWS_ACCESS_KEY_ID": {"hosts": ["good.test private"], "value": "AKIAEXAMPLEEXAMPLE00"},
        "AWS_SECRET_ACCESS_KEY": {"hosts": ["good.test private"], "value": "not/a/real/key/0123456789", **PAIR},
    }
    scene = start_intercepted(secrets=secrets)
    key = scene.placeholder("AWS_ACCESS_KEY_ID")
    with scene.open() as conn:
        conn.sendall(
            b"POST / HTTP/1.1\r\nHost: good.test\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256"
            b" Credential=%b/20260101/eu-west-1/sts/aws4_request, SignedHeaders=host;x-amz-date, Signature=%b\r\n"
            b"Content-Length: 2\r\n\r\nhi" % (key, b"0" * 64)
        )
        assert read_until(conn, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert b"AKIAEXAMPLEEXAMPLE00" in scene.origin.everything
    assert b"0" * 64 not in scene.origin.everything
