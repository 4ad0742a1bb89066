"""What might be HTTP in the eyes of some server: a table, and one verdict however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.http1 import MAX_SNIFFED, parse_request_head, sniff_request
from tests.support.examples import examples
from tests.unit.wire.mutation import cut, cut_points

TABLE: dict[bytes, bool | None] = {
    # Requests, well formed or not.
    b"GET / HTTP/1.1\r\n": True,
    b"get / HTTP/1.1\r\n": True,
    b"get / http/1.1\r\n": True,
    b"GET / HTTP/1.1\n": True,
    b"GET  /  HTTP/1.1 \r\n": True,
    b"GET / HTTP/1.1\rX": True,
    b"GET /\x80 HTTP/1.0": True,
    b"\r\n\nGET / HTTP/1.1\r\n": True,
    b" \t GET / HTTP/1.1\r\n": True,
    b"X\t/ HTTP/1.1\r\n": True,
    b"X\x0b/\x0bHTTP/1.1\r\n": True,
    b"X /\0 HTTP/1.1\r\n": True,
    b"X /\x01 HTTP/1.1\r\n": True,
    b"A" * 33 + b" / HTTP/1.1\r\n": True,
    b"A" * 5_000 + b" / HTTP/1.1\r\n": True,
    b"G:T / HTTP/1.1\r\n": True,
    b"X http://evil.test/ HTTP/1.1\r\n": True,
    b"X / HTTP/2.0\r\n": True,
    b"X / HTTP/9": True,
    b"PRI * HTTP/2.0\r\nHost: a\r\n": True,
    # HTTP/0.9, and methods that mean HTTP whatever follows.
    b"GET /\r\n": True,
    b"GET http://evil.test/\r\n": True,
    b"GET ": True,
    b"POST / RTSP/1.0\r\n": True,
    # Undecided until the limit, and HTTP there.
    b"": None,
    b"G": None,
    b"GET": None,
    b"\r\n": None,
    b" ": None,
    b"\r\n" * 4_000: None,
    b"\r\n" * 5_000: True,
    b"\n" * MAX_SNIFFED: True,
    b"A" * 33: None,
    b"A" * (MAX_SNIFFED - 1): None,
    b"A" * MAX_SNIFFED: True,
    b"X /" + b"a" * 8_000: None,
    b"X /" + b"a" * 9_000: True,
    b"X /" + b"a" * 9_000 + b" HTTP/1.1\r\n": True,
    b"GET /" + b"a" * 9_000: True,
    b"PRI * HTTP/2.0\r\n": None,
    b"0032git-upload-pack /p.git": None,
    # Other protocols.
    b"SSH-2.0-OpenSSH_9.6\r\n": False,
    b"EHLO a b\r\n": False,
    b"USER anonymous\r\n": False,
    b"NICK a\r\nUSER a 0 * :a\r\n": False,
    b"get some-key\r\n": False,
    b"*1\r\n$4\r\nPING\r\n": False,
    b"STOMP\naccept-version:1.2\n": False,
    b"CONNECT\naccept-version:1.2\n": False,
    b"@RSYNCD: 31.0\n": False,
    b"OPTIONS rtsp://a/ RTSP/1.0\r\n": False,
    b"REGISTER sip:a SIP/2.0\r\n": False,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": False,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0": False,
    b"0032git-upload-pack /p.git\0host=a\0": False,
    b"<?xml version='1.0'?><stream:stream": False,
    b'{"jsonrpc": "2.0"}': False,
    b"\0": False,
    b"\0\0\0\x08\x04\xd2\x16\x2f": False,
    b"\x16\x03\x01": False,
    b"\x05\x01\x00": False,
    b"\xff\xfd\x03": False,
    b"l\0\x0b\0": False,
    b"0\x0c\x02\x01\x01\x60": False,
    b"hrpc\t\0\xdf": False,
    b"AMQP\0\0\x09\x01": False,
    b"JRMI\0\x02K": False,
    b"abcdefghijklmnopqrstuvwxyz0123456789\0": False,
}


@pytest.mark.parametrize(("data", "verdict"), TABLE.items(), ids=[repr(data)[2:32] for data in TABLE])
def test_what_could_be_http(data: bytes, verdict: bool | None) -> None:
    assert sniff_request(data) is verdict


@pytest.mark.parametrize("data", [data for data, verdict in TABLE.items() if len(data) < 100 and verdict is not None])
def test_the_first_verdict_is_the_last(data: bytes) -> None:
    for end in range(len(data)):
        assert sniff_request(data[:end]) in (None, TABLE[data]), end


@given(
    data=st.one_of(
        st.binary(max_size=40),
        st.builds(
            b"".join,
            st.lists(
                st.sampled_from(
                    [b"GET", b" ", b"/a", b"HTTP/1.1", b"\r", b"\n", b"a" * 4_090, b"\t", b"\0", b"PRI * HTTP/2.0\r\n"]
                )
            ),
        ),
    ),
    cuts=cut_points,
)
@settings(max_examples=examples(300), deadline=None)
def test_one_verdict_however_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    """The first verdict on a growing prefix is the verdict on the whole: waiting never changes it."""
    whole = sniff_request(data)
    arrived = b""
    for piece in cut(data, cuts):
        arrived += piece
        verdict = sniff_request(arrived)
        if verdict is not None:
            assert verdict is whole
            break
    else:
        assert whole is None


@pytest.mark.parametrize(
    "data",
    [
        data
        for data, verdict in TABLE.items()
        if verdict and b"HTTP" in data and b"GET / HTTP/1.1\r\n" not in data[-16:]
    ],
)
def test_what_only_a_forgiving_server_reads_as_http_is_refused_by_the_parser(data: bytes) -> None:
    """Almost HTTP is taken for HTTP so that the strict parser says no to it, instead of no one."""
    with pytest.raises(ProtocolError):
        parse_request_head(data.lstrip(b"\r\n") + b"Host: a\r\n\r\n")
