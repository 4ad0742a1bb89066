"""Request targets: one pattern for the forms of a proxy, and everything else is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.http1 import check_origin_target, encode_target, parse_absolute_target
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, mutate, mutations


def refusal(target: bytes, method: bytes = b"GET") -> str:
    with pytest.raises(ProtocolError) as caught:
        parse_absolute_target(target, method)
    assert caught.value.status == 400
    return caught.value.public


@pytest.mark.parametrize(
    ("target", "authority", "path"),
    [
        (b"http://good.test/", b"good.test", b"/"),
        (b"http://good.test", b"good.test", b"/"),
        (b"http://good.test:8080", b"good.test:8080", b"/"),
        (b"HTTP://good.test/a", b"good.test", b"/a"),
        (b"hTtP://GOOD.test./a", b"GOOD.test.", b"/a"),
        (b"http://good.test?", b"good.test", b"/?"),
        (b"http://good.test?x=1", b"good.test", b"/?x=1"),
        (b"http://good.test?/../x", b"good.test", b"/?/../x"),
        (b"http://good.test/?x=http://evil.test/", b"good.test", b"/?x=http://evil.test/"),
        (b"http://good.test/@evil.test", b"good.test", b"/@evil.test"),
        (b"http://good.test?@evil.test/", b"good.test", b"/?@evil.test/"),
        (b"http://good.test//evil.test/", b"good.test", b"//evil.test/"),
        (b"http://good.test/a/../b;c=%2e%2E", b"good.test", b"/a/../b;c=%2e%2E"),
        (b"http://good.test/%00%0d%0a", b"good.test", b"/%00%0d%0a"),
        (b'http://good.test/"<>[]^`{|}', b"good.test", b'/"<>[]^`{|}'),
        (b"http://[::1]:80/", b"[::1]:80", b"/"),
        (b"http://a_b.good.test/", b"a_b.good.test", b"/"),
        # Raw: what the authority means is the policy's to say (A2, A4).
        (b"http://0x7f.1/", b"0x7f.1", b"/"),
        (b"http://[[good.test]]:443/", b"[[good.test]]:443", b"/"),
        (b"http://good.test:+80/", b"good.test:+80", b"/"),
        (b"http://:80/", b":80", b"/"),
    ],
)
def test_absolute_targets_are_cut_at_the_end_of_their_authority(target: bytes, authority: bytes, path: bytes) -> None:
    """The authority ends at the first slash or question mark; the rest is sent as it is, with a path if it has none."""
    assert parse_absolute_target(target, b"GET") == (authority, path)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://good.test", b"*"),
        (b"http://good.test:80", b"*"),
        (b"http://good.test/", b"/"),
        (b"http://good.test?x", b"/?x"),
        (b"http://good.test/*", b"/*"),
    ],
)
def test_options_without_a_path_asks_about_the_server(target: bytes, path: bytes) -> None:
    """RFC 9112 section 3.2.4: the last proxy sends `*` on."""
    assert parse_absolute_target(target, b"OPTIONS")[1] == path


@pytest.mark.parametrize(
    "target",
    [
        # A7: user information, backslashes and escapes in front of the path
        b"http://good.test@evil.test/",
        b"http://good.test:x@evil.test/",
        b"http://good.test:80@evil.test:80/",
        b"http://@good.test/",
        b"http://user:@good.test/",
        b"http://good.test\\@evil.test/",
        b"http://good.test\\.evil.test/",
        b"http://good.test\\/",
        b"http:\\\\good.test\\",
        b"http:/\\good.test/",
        b"http://g%6fod.test/",
        b"http://good.test%00/",
        b"http://good.test%2f@evil.test/",
        b"http://[fe80::1%25eth0]/",
        # fragments
        b"http://good.test#",
        b"http://good.test#@evil.test/",
        b"http://good.test/#x",
        b"http://good.test/a?b#c",
        # controls, white space, 8-bit bytes and delimiters of other grammars
        b"http://good.test\0.evil.test/",
        b"http://good.test\n/",
        b"http://good.test/\n",
        b"http://good.test/\r\nX: y",
        b"http://good.test /",
        b" http://good.test/",
        b"http://good.test/ ",
        b"http://good.test/\t",
        b"http://good.test/\x7f",
        b"http://good.test\x7f/",
        b"http://g\xc3\xb6od.test/",
        b"http://good.test/\xc3\xb6",
        b"http://good.test\xe3\x80\x82evil.test/",
        b'http://good.test"/',
        b"http://good.test<x>/",
        b"http://good.test^/",
        b"http://{good.test}/",
        b"http://good.test|evil.test/",
        b"http://good.test`/",
        # no authority
        b"http://",
        b"http:///",
        b"http:///good.test/",
        b"http://?x",
        b"http:good.test/",
        b"http:/good.test/",
        b"http",
        # other forms and schemes (B8)
        b"",
        b"*",
        b"good.test",
        b"good.test:80",
        b"good.test/",
        b"//good.test/",
        b"://good.test/",
        b"ftp://good.test/",
        b"file:///etc/passwd",
        b"urn:x:y",
        b"ws://good.test/",
        b"wss://good.test/",
        b"gopher://good.test/",
        b"httpx://good.test/",
        b"xhttp://good.test/",
        b"http+unix://good.test/",
        b"javascript:alert(1)",
        b"cache_object://good.test/",
    ],
)
def test_every_other_target_is_malformed(target: bytes) -> None:
    """A7, B8: where two readers could see two hosts, none is seen."""
    assert refusal(target)
    assert refusal(target, b"OPTIONS")


@pytest.mark.parametrize("target", [b"https://good.test/", b"HTTPS://good.test/", b"https://"])
def test_https_urls_are_told_about_connect(target: bytes) -> None:
    """A frequent mistake of clients deserves its own sentence."""
    assert "CONNECT" in refusal(target)


@pytest.mark.parametrize("target", [b"/", b"/index.html", b"//good.test/"])
def test_origin_form_is_told_that_this_is_a_proxy(target: bytes) -> None:
    """So does a client that takes the gateway for a server."""
    assert "absolute" in refusal(target)


targets = st.sampled_from(
    [
        b"http://good.test/a/b?c",
        b"http://good.test:80",
        b"http://[::1]?x",
        b"HTTP://u@good.test/",
        b"http://good.test/#f",
    ]
)
PIECES = [b"@", b"\\", b"//", b"http://", b"evil.test", b"%00", b"%2f", b"#", b"?", b"[", b"]:80"]


@given(target=targets, changes=mutations(PIECES), method=st.sampled_from([b"GET", b"OPTIONS"]))
@settings(max_examples=examples(400), deadline=None)
def test_an_accepted_target_reassembles_to_itself(target: bytes, changes: list[Mutation], method: bytes) -> None:
    """Authority and path are the target, all of it and in order; only a missing path is supplied."""
    target = mutate(target, changes)
    try:
        authority, path = parse_absolute_target(target, method)
    except ProtocolError:
        return
    assert target[:7].lower() == b"http://"
    written = target[7:]
    assert authority
    assert not set(authority) & set(b"@\\/?#% \t\r\n\0")
    assert all(0x21 <= byte <= 0x7E and byte != 0x23 for byte in path)
    if written == authority:
        assert path == (b"*" if method == b"OPTIONS" else b"/")
    elif written == authority + path[1:]:
        assert path[:2] == b"/?"
    else:
        assert written == authority + path
        assert path[:1] == b"/"
    # Once in canonical form it is a fixed point, and its path is what a tunnel would accept.
    assert check_origin_target(path, method) == path
    if path != b"*":
        assert parse_absolute_target(b"http://" + authority + path, method) == (authority, path)


@given(target=st.binary(max_size=20), start=st.sampled_from([b"", b"http://", b"http://a", b"http://a/", b"/"]))
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_at_all_give_a_target_or_a_protocol_error(target: bytes, start: bytes) -> None:
    """No input reaches another exception."""
    for parse in (parse_absolute_target, check_origin_target):
        try:
            parse(start + target, b"GET")
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    ("target", "method", "accepted"),
    [
        (b"/", b"GET", True),
        (b"/a?b=c", b"GET", True),
        (b"/a/../b", b"GET", True),  # resolved, or refused, where paths are judged (B7)
        (b"//evil.test/", b"GET", True),
        (b"*", b"OPTIONS", True),
        (b"*", b"GET", False),
        (b"", b"GET", False),
        (b"?x", b"GET", False),
        (b"a", b"GET", False),
        (b"http://good.test/", b"GET", False),
        (b"good.test:443", b"CONNECT", False),
        (b"/a#b", b"GET", False),
        (b"/a b", b"GET", False),
        (b"/\0", b"GET", False),
        (b"/\n", b"GET", False),
        (b"/\x7f", b"GET", False),
        (b"/\xe9", b"GET", False),
        (b"\\", b"GET", False),
        (b"**", b"OPTIONS", False),
    ],
)
def test_inside_a_tunnel_only_origin_form_counts(target: bytes, method: bytes, accepted: bool) -> None:
    """The host is settled by the tunnel; a target that names one is refused, not compared."""
    if accepted:
        assert check_origin_target(target, method) == target
    else:
        with pytest.raises(ProtocolError) as caught:
            check_origin_target(target, method)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        (b"/plain?x=%20", b"/plain?x=%20"),
        ("/\u00e4?\u00f6=\u00fc".encode(), b"/%C3%A4?%C3%B6=%C3%BC"),
        ("/\U0001f600/".encode(), b"/%F0%9F%98%80/"),
    ],
)
def test_utf8_is_percent_encoded(raw: bytes, encoded: bytes) -> None:
    """As curl sends what was typed. ASCII, escapes included, stays as it is."""
    assert encode_target(raw) == encoded


@pytest.mark.parametrize("raw", [b"/\xe9", b"/\xc3", b"/\xc0\xaf", b"/\xed\xa0\x80", b"/\xff\xfe"])
def test_what_is_not_utf8_is_refused_with_a_hint(raw: bytes) -> None:
    """Latin-1, cut off, overlong, a surrogate: two readers could take it for two things."""
    with pytest.raises(ProtocolError, match="percent-encode it"):
        encode_target(raw)


def test_a_host_beyond_ascii_is_still_malformed() -> None:
    """Encoding is for paths. Percent signs have no place in an authority."""
    assert refusal(encode_target("http://g\u00f6od.test/".encode()))


def test_ftp_gets_advice() -> None:
    """curl asks a proxy for ftp URLs when ALL_PROXY is set."""
    with pytest.raises(ProtocolError, match=r"ftp URLs do not go through this proxy: use https, or allow .*HOST:\*"):
        parse_absolute_target(b"FTP://good.test/file", b"GET")


def test_long_targets_do_not_backtrack() -> None:
    """I6: the patterns are linear in their input, matching or not."""
    long = b"a" * 5_000_000
    assert parse_absolute_target(b"http://" + long, b"GET")[0] == long
    assert refusal(b"http://" + long + b"@")
    assert refusal(b"http://a/" + long + b"#")
    assert check_origin_target(b"/" + long, b"GET") == b"/" + long
