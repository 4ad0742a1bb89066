"""The server's answer to a hello, and the second hello: the same verdict however the bytes arrive."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.tls import (
    MAX_HELLO_RECORDS,
    RETRY_RANDOM,
    ClientHello,
    asks_for_second_hello,
    find_second_hello,
    parse_client_hello,
)
from tests.support.clients.hello import client_hello, records
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, mutate, mutations

WARNING = b"\x15\x03\x03\x00\x02\x01\x70"
FATAL = b"\x15\x03\x03\x00\x02\x02\x28"
SPEC = b"\x14\x03\x03\x00\x01\x01"
EARLY = b"\x17\x03\x03\x00\x05early"
HELLO = client_hello(b"good.test")


def server_hello(random: bytes) -> bytes:
    body = b"\x03\x03" + random + b"\0\x13\x01\0" + b"\0\x06\0\x2b\0\x02\x03\x04"
    return b"\x02" + len(body).to_bytes(3) + body


RETRY = server_hello(RETRY_RANDOM)
OTHER = server_hello(b"r" * 32)


def test_the_random_is_the_one_of_the_standard() -> None:
    assert hashlib.sha256(b"HelloRetryRequest").digest() == RETRY_RANDOM


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (records(RETRY), True),
        (records(RETRY) + SPEC, True),
        (records(RETRY, 1), True),
        (records(RETRY, 7), True),
        (WARNING + records(RETRY), True),
        (WARNING * 3 + records(RETRY, 9), True),
        (records(OTHER), False),
        (WARNING + records(OTHER), False),
        (FATAL, False),
        (FATAL + records(RETRY), False),
        (b"\x15\x03\x03\x00\x1a" + bytes(26), False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"220 mail.test ESMTP\r\n", False),
        (b"\x16\x02\x00", False),
        (records(b"\x00\0\0\0"), False),
        (records(b"\x01" + RETRY[1:]), False),
        (WARNING * MAX_HELLO_RECORDS, True),
        (b"\x16\x03\x03\0\0" * MAX_HELLO_RECORDS, True),
        (b"", None),
        (WARNING, None),
        (records(RETRY[:37]), None),
    ],
)
def test_what_a_server_answers(data: bytes, verdict: bool | None) -> None:
    """The first verdict on any beginning is the verdict on the whole."""
    assert asks_for_second_hello(data) is verdict
    for end in range(len(data)):
        early = asks_for_second_hello(data[:end])
        assert early in (None, verdict), end


@given(
    base=st.sampled_from([records(RETRY), records(OTHER), records(RETRY, 10), WARNING + records(RETRY)]),
    changes=mutations([WARNING, FATAL, b"\x16\x03\x03\0\0", RETRY_RANDOM]),
)
@settings(max_examples=examples(300), deadline=None)
def test_damaged_answers_get_one_verdict_whatever_the_timing(base: bytes, changes: list[Mutation]) -> None:
    data = mutate(base, changes)
    whole = asks_for_second_hello(data)
    for end in range(len(data)):
        early = asks_for_second_hello(data[:end])
        assert early is None or early is whole


@pytest.mark.parametrize("before", [b"", SPEC, EARLY * 2 + SPEC, WARNING])
def test_the_second_hello_is_found_behind_what_may_precede_it(before: bytes) -> None:
    data = before + HELLO
    assert find_second_hello(data) == (len(before), ClientHello("good.test"))
    for end in range(len(data)):
        size, hello = find_second_hello(data[:end])
        assert hello is None
        assert size <= min(end, len(before))
        # What is before it has been passed on; the rest is the same hello.
        assert find_second_hello(data[size:])[1] == ClientHello("good.test")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        records(b"\x02\0\0\0"),
        SPEC + records(b"\x10\0\0\x01x"),
        b"\x17\x03\x03\xff\xff",
        b"\x80\x2e\x01\x03\x01",
        SPEC + b"\x18\x03\x03\0\x01x",
    ],
)
def test_anything_else_instead_of_a_second_hello_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        find_second_hello(data)


@given(
    base=st.sampled_from([HELLO, SPEC + HELLO, EARLY + SPEC + HELLO]),
    changes=mutations([SPEC, EARLY, b"\x16\x03\x01", b"\0\x09evil.test"]),
)
@settings(max_examples=examples(300), deadline=None)
def test_nothing_of_a_handshake_passes_before_it_is_judged(base: bytes, changes: list[Mutation]) -> None:
    """What is let through before the hello holds whole records, and none of them is a handshake record."""
    data = mutate(base, changes)
    for end in range(len(data) + 1):
        try:
            size, _ = find_second_hello(data[:end])
        except ProtocolError:
            continue
        position = 0
        while position < size:
            assert data[position] in (0x14, 0x15, 0x17)
            position += 5 + int.from_bytes(data[position + 3 : position + 5])
        assert position == size


def test_the_size_of_a_hello_is_that_of_its_records() -> None:
    for data in (HELLO, records(HELLO[5:], 10)):
        found = parse_client_hello(data + b"more")
        assert found is not None
        assert found.size == len(data)
