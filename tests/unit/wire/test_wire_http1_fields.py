"""Fields of heads: each row is one attack or one ordinary message, with the verdict it must get."""

from __future__ import annotations

import pytest

from exeat.errors import ProtocolError
from exeat.wire.http1 import encode_head, parse_request_head, parse_response_head, sniff_request
from tests.unit.wire.heads import refused_request, refused_response, request, response

WEBSOCKET_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 10_000])
def test_too_many_fields_are_counted_before_they_are_read(count: int) -> None:
    """I2: 431 to the client; a server that does it is a bad gateway. The limit itself is allowed."""
    fields = [b"X: y"] * count
    ask = request(*fields, line=b"GET http://good.test/ HTTP/1.0", host=None)
    if count <= 128:
        assert len(parse_request_head(ask).headers) == count
        assert len(parse_response_head(response(*fields), max_headers=128).headers) == count
    else:
        assert refused_request(ask) == 431
        with pytest.raises(ProtocolError) as caught:
            parse_response_head(response(*fields), max_headers=128)
        assert caught.value.status == 502


def test_a_very_long_line_is_read_or_refused_without_another_exception() -> None:
    """I2, I6: length is the caller's limit; the parser itself neither breaks nor backtracks."""
    long = b"a" * 1_000_000
    assert parse_request_head(request(b"X: " + long)).headers == [(b"X", long)]
    assert parse_request_head(request(line=b"GET http://good.test/" + long + b" HTTP/1.1")).target.endswith(long)
    assert refused_request(request(line=long)) == 400
    assert refused_request(request(line=b"GET " + long)) == 400
    assert refused_request(request(long)) == 400
    assert refused_request(request(b"Connection: " + b" " * 1_000_000 + b"\x0b")) == 400
    assert refused_response(response(line=b"HTTP/1.1 200 " + long + b"\x01")) == 502


@pytest.mark.parametrize(
    ("version", "hosts", "accepted"),
    [
        (b"1.1", [b"good.test"], True),
        (b"1.1", [], False),
        (b"1.1", [b"good.test", b"evil.test"], False),
        (b"1.1", [b"good.test", b"good.test"], False),
        (b"1.0", [], True),
        (b"1.0", [b"good.test"], True),
        (b"1.0", [b"good.test", b"evil.test"], False),
        (b"1.1", [b"", b"good.test"], False),
    ],
)
def test_there_is_one_host(version: bytes, hosts: list[bytes], accepted: bool) -> None:
    """B1: exactly one Host in HTTP/1.1, at most one in HTTP/1.0, whatever it says."""
    head = request(*(b"hOsT: " + host for host in hosts), line=b"GET http://good.test/ HTTP/" + version, host=None)
    if accepted:
        parsed = parse_request_head(head)
        assert parsed.host == (hosts[0] if hosts else None)
        assert parsed.headers == []
    else:
        assert refused_request(head) == 400


@pytest.mark.parametrize(
    "host", [b"evil.test", b"good.test:x@evil.test", b"good.test, evil.test", b"[::1]:80", b"", b"\xe2\x93\x94vil.com"]
)
def test_the_host_field_is_handed_over_raw(host: bytes) -> None:
    """What a Host means is the policy's to say (A7); here it is only separated from its white space."""
    assert parse_request_head(request(host=b"\t" + host + b" ")).host == host


@pytest.mark.parametrize(
    "name",
    [
        b"authorization",
        b"Cache-Control",
        b"content-encoding",
        b"Content-Length",
        b"content-range",
        b"content-type",
        b"COOKIE",
        b"expect",
        b"Host",
        b"range",
        b"set-cookie",
        b"Transfer-Encoding",
    ],
)
@pytest.mark.parametrize("template", [b"%b", b"close, %b", b"%b, keep-alive", b",,%b,", b"x,\t%b"])
def test_connection_cannot_make_us_drop_a_field_that_matters(name: bytes, template: bytes) -> None:
    """B6: `Connection: authorization` would strip the credential or the framing on its way."""
    assert refused_request(request(b"Connection: " + template % name)) == 400
    assert refused_request(request(b"Connection: close", b"Connection: " + template % name)) == 400
    assert refused_response(response(b"Connection: " + template % name)) == 502


@pytest.mark.parametrize("value", [b"close x", b"clo\xe9se", b'"close"', b"close;q=1", b"keep-alive: yes", b"a/b"])
def test_a_connection_field_that_is_no_list_of_tokens_is_bad(value: bytes) -> None:
    """A list that cannot be read cannot be obeyed."""
    assert refused_request(request(b"Connection: " + value)) == 400
    assert refused_response(response(b"Connection: " + value)) == 502


def test_hop_by_hop_fields_end_here() -> None:
    """B6: what was meant for this hop, and whatever Connection names, is not passed on; all else is, in order."""
    fields = [
        b"Accept: */*",
        b"Connection: x-private, TE",
        b"X-Private: 1",
        b"x-PRIVATE: 2",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: Basic dTpw",
        b"Proxy-Anything: 1",
        b"TE: trailers, deflate;q=0.5",
        b"Trailer: X-Sum",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABk",
        b"Expect: 100-Continue",
        b"Authorization: Bearer t",
        b"accept: text/html",
    ]
    head = parse_request_head(request(*fields))
    assert head.headers == [(b"Accept", b"*/*"), (b"Authorization", b"Bearer t"), (b"accept", b"text/html")]
    assert head.authorization == b"Basic dTpw"
    assert head.te_trailers
    assert head.expect_continue
    answer = parse_response_head(response(*fields, b"Proxy-Status: origin", b"Proxy-Authenticate: Basic"))
    assert answer.headers == [(b"Accept", b"*/*"), (b"Authorization", b"Bearer t"), (b"accept", b"text/html")]


def test_two_proxy_credentials_are_bad() -> None:
    """Which of the two was meant cannot be known."""
    assert refused_request(request(b"Proxy-Authorization: Basic YQ==", b"proxy-authorization: Basic YQ==")) == 400


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_trace_is_not_allowed(version: bytes) -> None:
    """B6: TRACE would echo what is added on the way."""
    assert refused_request(request(line=b"TRACE http://good.test/ HTTP/" + version)) == 405


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"100-continue", None),
        (b"100-Continue", None),
        (b" 100-continue\t", None),
        (b"", 417),
        (b"200-ok", 417),
        (b"100-continue, x", 417),
        (b"100-continue;q=1", 417),
        (b'"100-continue"', 417),
        (b"100", 417),
    ],
)
def test_only_one_expectation_is_known(value: bytes, status: int | None) -> None:
    """RFC 9110 section 10.1.1: 417 for every other; HTTP/1.0 clients cannot expect anything."""
    head = request(b"Expect: " + value)
    if status is None:
        assert parse_request_head(head).expect_continue
        old = request(b"Expect: " + value, line=b"POST http://good.test/ HTTP/1.0")
        assert not parse_request_head(old).expect_continue
    else:
        assert refused_request(head) == status
    assert parse_response_head(response(b"Expect: " + value)).headers == []


@pytest.mark.parametrize(
    ("version", "fields", "keep"),
    [
        (b"1.1", [], True),
        (b"1.1", [b"Connection: close"], False),
        (b"1.1", [b"Connection: Close, keep-alive"], False),
        (b"1.1", [b"Connection: keep-alive", b"connection: CLOSE"], False),
        (b"1.1", [b"Connection:"], True),
        (b"1.1", [b"Connection: , ,"], True),
        (b"1.1", [b"Proxy-Connection: close"], True),
        (b"1.0", [], False),
        (b"1.0", [b"Connection: Keep-Alive"], True),
        (b"1.0", [b"Connection: keep-alive, close"], False),
        (b"1.0", [b"Proxy-Connection: Keep-Alive"], True),
        (b"1.0", [b"Proxy-Connection: keep-alive", b"Connection: close"], False),
    ],
)
def test_how_long_the_connection_lives(version: bytes, fields: list[bytes], keep: bool) -> None:
    """RFC 9112 section 9.3; close wins over everything, Proxy-Connection counts for HTTP/1.0 clients only."""
    assert parse_request_head(request(*fields, line=b"GET http://good.test/ HTTP/" + version)).keep_alive is keep
    if not any(field.startswith(b"Proxy-") for field in fields):
        assert parse_response_head(response(*fields, line=b"HTTP/" + version + b" 200 OK")).keep_alive is keep


UPGRADE = [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: " + WEBSOCKET_KEY]
GET = b"GET http://good.test/ HTTP/1.1"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (GET, UPGRADE),
        (GET, [b"connection: keep-alive, UPGRADE", b"upgrade: WebSocket", b"sec-websocket-key:" + WEBSOCKET_KEY]),
        (GET, [*UPGRADE, b"Sec-WebSocket-Version: 13", b"Content-Length: 0"]),
    ],
)
def test_a_well_formed_websocket_upgrade_is_recognised(line: bytes, fields: list[bytes]) -> None:
    """B5: the key is kept to check the answer against; Upgrade itself is never passed on as it came."""
    head = parse_request_head(request(*fields, line=line))
    assert head.websocket_key == WEBSOCKET_KEY
    assert not {name.lower() for name, _ in head.headers} & {b"connection", b"upgrade"}


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (b"POST http://good.test/ HTTP/1.1", UPGRADE),
        (b"GET http://good.test/ HTTP/1.0", UPGRADE),
        (GET, UPGRADE[1:]),
        (GET, [UPGRADE[0], UPGRADE[2]]),
        (GET, UPGRADE[:2]),
        (GET, [*UPGRADE, b"Content-Length: 1"]),
        (GET, [*UPGRADE, b"Transfer-Encoding: chunked"]),
        (GET, [*UPGRADE, UPGRADE[2]]),
        (GET, [*UPGRADE, b"Sec-WebSocket-Key:"]),
        (GET, [*UPGRADE, b"Upgrade: h2c"]),
        (GET, [b"Connection: close", *UPGRADE[1:]]),
        (GET, [UPGRADE[0], b"Upgrade: h2c", UPGRADE[2]]),
        (GET, [UPGRADE[0], b"Upgrade: h2c, websocket", UPGRADE[2]]),
        (GET, [UPGRADE[0], b"Upgrade: websocket/13", UPGRADE[2]]),
        (GET, [UPGRADE[0], b"Upgrade:", UPGRADE[2]]),
        (GET, [*UPGRADE[:2], b"Sec-WebSocket-Key:"]),
        (GET, [*UPGRADE[:2], b"Sec-WebSocket-Key: x"]),
        (GET, [*UPGRADE[:2], b"Sec-WebSocket-Key: " + WEBSOCKET_KEY[:-2]]),
        (GET, [*UPGRADE[:2], b"Sec-WebSocket-Key: " + WEBSOCKET_KEY + b"x"]),
        (GET, [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"]),
    ],
)
def test_every_other_upgrade_is_stripped(line: bytes, fields: list[bytes]) -> None:
    """B5: h2c and malformed upgrades go on as plain requests, without anything that could start a tunnel."""
    head = parse_request_head(request(*fields, line=line))
    assert head.websocket_key is None
    assert not {name.lower() for name, _ in head.headers} & {b"connection", b"upgrade", b"http2-settings"}


@pytest.mark.parametrize(
    ("fields", "accept"),
    [
        ([b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Accept: s3p="], b"s3p="),
        ([b"Connection: x, upgrade", b"Upgrade: WebSocket", b"sec-websocket-accept:\ts3p="], b"s3p="),
        ([b"Upgrade: websocket", b"Sec-WebSocket-Accept: s3p="], None),
        ([b"Connection: Upgrade", b"Sec-WebSocket-Accept: s3p="], None),
        ([b"Connection: Upgrade", b"Upgrade: h2c", b"Sec-WebSocket-Accept: s3p="], None),
        ([b"Connection: Upgrade", b"Upgrade: websocket, h2c", b"Sec-WebSocket-Accept: s3p="], None),
        ([b"Connection: Upgrade", b"Upgrade: websocket"], None),
    ],
)
def test_a_switch_to_websocket_must_be_complete(fields: list[bytes], accept: bytes | None) -> None:
    """B5: without all three fields there is nothing to compare with the key, so no tunnel (RFC 6455 section 4.1)."""
    head = response(*fields, line=b"HTTP/1.1 101 Switching Protocols")
    if not {b"Connection", b"Upgrade"} <= {field.split(b":")[0] for field in fields}:
        assert refused_response(head) == 502
        return
    answer = parse_response_head(head)
    assert answer.websocket_accept == accept
    assert answer.length == 0


@pytest.mark.parametrize("fields", [[], [b"Content-Length: 5"], [b"Transfer-Encoding: chunked"]])
@pytest.mark.parametrize("status", [100, 103, 199, 200, 204, 206, 304, 404, 500])
@pytest.mark.parametrize("to_head", [False, True])
def test_which_responses_have_no_body(fields: list[bytes], status: int, to_head: bool) -> None:
    """RFC 9112 section 6.3: 1xx, 204, 304 and answers to HEAD end with their head, whatever they announce."""
    answer = parse_response_head(response(*fields, line=b"HTTP/1.1 %d x" % status), to_head=to_head)
    if status < 200 or status in (204, 304) or to_head:
        assert (answer.length, answer.chunked) == (0, False)
    elif not fields:
        assert (answer.length, answer.chunked) == (None, False)
    else:
        assert (answer.length, answer.chunked) == ((5, False) if b"Length" in fields[0] else (None, True))
    # RFC 9110 section 8.6: a length is meaningful in 304 and to HEAD, and forbidden in 1xx and 204.
    expected = (
        [(b"Content-Length", b"5")] if fields == [b"Content-Length: 5"] and status >= 200 and status != 204 else []
    )
    assert answer.headers == expected


@pytest.mark.parametrize(
    "method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"PROPFIND", b"M-SEARCH"]
)
@pytest.mark.parametrize("minor", [0, 1])
def test_ordinary_requests_pass_and_are_recognised_inside_a_tunnel(method: bytes, minor: int) -> None:
    """What the parser accepts, the sniffer takes for HTTP, so that the doors agree (A10)."""
    head = request(line=b"%b http://good.test/a?b HTTP/1.%d" % (method, minor))
    parsed = parse_request_head(head)
    assert (parsed.method, parsed.target, parsed.minor) == (method, b"http://good.test/a?b", minor)
    assert sniff_request(head) is True


def test_connect_is_read_with_its_authority() -> None:
    """C3: the target of CONNECT is raw, for the policy to judge; a body is reported, not swallowed."""
    for target in (b"good.test:443", b"[::1]:443", b"u@evil.test:443"):
        assert parse_request_head(request(line=b"CONNECT " + target + b" HTTP/1.1")).target == target
    assert parse_request_head(request(b"Content-Length: 5", line=b"CONNECT good.test:443 HTTP/1.1")).has_body
    assert parse_request_head(request(b"Transfer-Encoding: chunked", line=b"CONNECT a:1 HTTP/1.1")).has_body


def test_what_is_passed_on_makes_one_head_with_what_is_added() -> None:
    """The line, the fields in order and byte for byte, our own fields, and the empty line."""
    assert encode_head(b"GET / HTTP/1.1", b"") == b"GET / HTTP/1.1\r\n\r\n"
    passed = parse_request_head(request(b"A:b ", b"Connection: close, d", b"D: e", b"X:", b"X:\tcaf\xe9")).passed
    assert encode_head(b"GET / HTTP/1.1", passed, b"F: g\r\n") == (
        b"GET / HTTP/1.1\r\nA:b \r\nX:\r\nX:\tcaf\xe9\r\nF: g\r\n\r\n"
    )
