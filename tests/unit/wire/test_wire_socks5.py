"""SOCKS5: every message is read at its last byte, and host names are handed over as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.wire.socks5 import (
    NO_ACCEPTABLE_METHOD,
    Reply,
    SocksError,
    SocksRequest,
    encode_reply,
    parse_credentials,
    parse_greeting,
    parse_request,
)
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, mutate, mutations

T = TypeVar("T")
Parse = Callable[[bytes], tuple[T, int] | None]


def by_name(name: bytes, port: int = 443) -> bytes:
    return b"\x05\x01\x00\x03" + bytes((len(name),)) + name + port.to_bytes(2)


def check_incremental(parse: Parse[T], message: bytes, value: T) -> None:
    """Nothing before the last byte, the value at it, and what follows is counted as unused."""
    for end in range(len(message)):
        assert parse(message[:end]) is None, end
    for rest in (b"", b"\x05", b"\x16\x03\x01rest", message):
        assert parse(message + rest) == (value, len(message))


@pytest.mark.parametrize(
    ("message", "methods"),
    [
        (b"\x05\x01\x00", {0}),
        (b"\x05\x02\x00\x02", {0, 2}),
        (b"\x05\x03\x02\x02\x80", {2, 0x80}),
        (b"\x05\x00", set()),
        (b"\x05\xff" + bytes(range(255)), set(range(255))),
    ],
)
def test_greetings_are_read_at_their_last_byte(message: bytes, methods: set[int]) -> None:
    """The offered methods as a set; offering none is a message too, for the gateway to refuse."""
    check_incremental(parse_greeting, message, frozenset(methods))


@pytest.mark.parametrize(
    ("message", "user", "password"),
    [
        (b"\x01\x01u\x01p", b"u", b"p"),
        (b"\x01\x00\x00", b"", b""),
        (b"\x01\x00\x03a\0b", b"", b"a\0b"),
        (b"\x01\xff" + b"u" * 255 + b"\xff" + b"\xfe" * 255, b"u" * 255, b"\xfe" * 255),
    ],
)
def test_credentials_are_read_at_their_last_byte(message: bytes, user: bytes, password: bytes) -> None:
    """RFC 1929: any bytes, empty and 255 long included."""
    check_incremental(parse_credentials, message, (user, password))


@pytest.mark.parametrize(
    ("message", "host", "port"),
    [
        (by_name(b"good.test"), "good.test", 443),
        (by_name(b"good.test", 0), "good.test", 0),
        (by_name(b"good.test", 65_535), "good.test", 65_535),
        (by_name(b"a" * 255, 80), "a" * 255, 80),
        (by_name(b""), "", 443),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbb", "192.0.2.1", 443),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", "127.0.0.1", 80),
        (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50", "[::1]", 80),
        (b"\x05\x01\x00\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x01\xbb", "[2001:db8::1]", 443),
    ],
)
def test_requests_of_every_address_type_are_read_at_their_last_byte(message: bytes, host: str, port: int) -> None:
    """RFC 1928 section 5: names, IPv4 and IPv6, in the notation that the policy reads."""
    check_incremental(parse_request, message, SocksRequest(host, port))


@pytest.mark.parametrize(
    "name",
    [
        b"evil.test\0.wild.test",
        b"\0",
        b"good.test\r\nHost: evil.test",
        b"good.test%00",
        b"127.0.0.1",
        b"0x7f.1",
        b"[::1]",
        b"good.test:80",
        b"good.test@evil.test",
        b" good.test",
        b"../../etc",
        *(b"good%c.test" % code for code in [*range(0x21), 0x7F]),
    ],
)
def test_names_pass_through_as_raw_text(name: bytes) -> None:
    """A1: no byte is trimmed, and no end of string seen, so that the policy judges what the client sent."""
    parsed = parse_request(by_name(name))
    assert parsed == (SocksRequest(name.decode("ascii"), 443), 7 + len(name))


@pytest.mark.parametrize("name", [b"\x80", b"g\xc3\xb6od.test", b"\xe2\x93\x94vil.com", b"good.test\xff"])
def test_names_that_are_not_ascii_are_malformed(name: bytes) -> None:
    """A6: there is no encoding to read them in."""
    with pytest.raises(SocksError) as caught:
        parse_request(by_name(name))
    assert caught.value.reply is Reply.GENERAL_FAILURE


def test_other_versions_are_refused_at_their_first_byte() -> None:
    """SOCKS4, TLS and HTTP are not waited for; the version of credentials is 1."""
    refused = f"refused with {Reply.GENERAL_FAILURE}"
    for code in range(256):
        first = bytes((code,))
        assert verdict_on(parse_greeting, first) == (None if code == 5 else refused)
        assert verdict_on(parse_request, first) == (None if code == 5 else refused)
        assert verdict_on(parse_credentials, first) == (None if code == 1 else refused)


def test_credentials_of_version_five_are_refused() -> None:
    """A client that skips authentication and sends its request at once is not let through."""
    with pytest.raises(SocksError):
        parse_credentials(by_name(b"good.test"))


@pytest.mark.parametrize("address", [b"\x01\xc0\x00\x02\x01", b"\x03\x01a", b"\x04" + bytes(16)])
def test_every_command_but_connect_is_refused_once_the_message_is_whole(address: bytes) -> None:
    """BIND and UDP ASSOCIATE get code 7, after all of the request was taken, so that the answer arrives."""
    for command in (0, *range(2, 256)):
        message = b"\x05" + bytes((command, 0)) + address + b"\x00\x50"
        for end in range(len(message)):
            assert parse_request(message[:end]) is None
        assert verdict_on(parse_request, message) == f"refused with {Reply.COMMAND_NOT_SUPPORTED}"


def test_unknown_address_types_are_refused() -> None:
    """Code 8: the length of such a message is not known, so there is nothing to wait for."""
    for kind in {*range(256)} - {1, 3, 4}:
        verdict = verdict_on(parse_request, b"\x05\x01\x00" + bytes((kind, 0)))
        assert verdict == f"refused with {Reply.ADDRESS_TYPE_NOT_SUPPORTED}"


def test_the_reserved_byte_is_zero() -> None:
    """RFC 1928 section 4."""
    for reserved in range(1, 256):
        message = b"\x05\x01" + bytes((reserved,)) + by_name(b"good.test")[3:]
        assert verdict_on(parse_request, message) == f"refused with {Reply.GENERAL_FAILURE}"


@pytest.mark.parametrize("reply", Reply)
def test_replies_say_their_code_and_no_address(reply: Reply) -> None:
    """Ten bytes, a bound address of zeros: where we connect from is not told."""
    assert encode_reply(reply) == b"\x05" + bytes((reply,)) + b"\x00\x01" + bytes(6)
    assert NO_ACCEPTABLE_METHOD == b"\x05\xff"


def first_verdict(parse: Parse[T], data: bytes) -> tuple[T, int] | str | None:
    """The first answer that is not "incomplete" while the bytes come one by one."""
    for end in range(len(data) + 1):
        verdict = verdict_on(parse, data[:end])
        if verdict is not None:
            return verdict
    return None


def verdict_on(parse: Parse[T], data: bytes) -> tuple[T, int] | str | None:
    try:
        return parse(data)
    except SocksError as error:
        return f"refused with {error.reply}"


MESSAGES = [
    b"\x05\x02\x00\x02",
    b"\x01\x04user\x04pass",
    by_name(b"good.test"),
    b"\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbb",
    b"\x05\x01\x00\x04" + bytes(16) + b"\x01\xbb",
]


@given(
    data=st.binary(max_size=40)
    | st.builds(mutate, st.sampled_from(MESSAGES), mutations([b"\x05\x01\x00\x03", b"\x05\x01\x00", b"\x01"])),
)
@example(data=b"\x05\x02\x00\x01" + bytes(6))
@settings(max_examples=examples(400), deadline=None)
def test_any_bytes_give_one_verdict_however_they_arrive(data: bytes) -> None:
    """A value, a SocksError or "incomplete", never another exception, and the same for whole and for single bytes."""
    assert first_verdict(parse_greeting, data) == verdict_on(parse_greeting, data)
    assert first_verdict(parse_credentials, data) == verdict_on(parse_credentials, data)
    assert first_verdict(parse_request, data) == verdict_on(parse_request, data)


@given(name=st.binary(max_size=255).map(lambda raw: bytes(byte & 0x7F for byte in raw)), port=st.integers(0, 65_535))
@settings(max_examples=examples(100), deadline=None)
def test_any_name_and_port_come_back_unchanged(name: bytes, port: int) -> None:
    """A1: what is judged is what was sent."""
    assert parse_request(by_name(name, port)) == (SocksRequest(name.decode("ascii"), port), 7 + len(name))


@given(changes=mutations())
@settings(max_examples=examples(50), deadline=None)
def test_what_follows_a_message_never_changes_it(changes: list[Mutation]) -> None:
    """Bytes sent ahead belong to the next step."""
    for message in MESSAGES[2:]:
        whole = parse_request(message)
        assert whole is not None
        assert parse_request(message + mutate(b"\x16\x03\x01\0", changes)) == whole
