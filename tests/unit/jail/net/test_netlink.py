"""Netlink messages: their bytes, and what the kernel says to them in a namespace of its own."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from exeat.jail import libc
from exeat.jail.net import netlink
from exeat.jail.net.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, Netlink, attribute, message, nested, text
from exeat.wire.netlink import parse_attributes
from tests.support.gateways.redirected import require
from tests.support.jails.forked import attempt


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "0400 0100"),
        (b"\xaa", "0500 0100 aa000000"),
        (b"\xaa\xbb\xcc", "0700 0100 aabbcc00"),
        (b"\xaa\xbb\xcc\xdd", "0800 0100 aabbccdd"),
        (b"\xaa\xbb\xcc\xdd\xee", "0900 0100 aabbccdd ee000000"),
    ],
)
def test_an_attribute_is_padded_but_its_length_is_not(value: bytes, expected: str) -> None:
    assert attribute(1, value) == bytes.fromhex(expected)


def test_a_nested_attribute_holds_others_with_their_padding() -> None:
    inner = attribute(1, b"\xaa"), attribute(2, b"\xbb")
    assert nested(3, *inner) == bytes.fromhex("1400 0380  0500 0100 aa000000  0500 0200 bb000000")
    assert parse_attributes(nested(3, *inner)) == {3: b"".join(inner)}


def test_text_ends_with_a_zero() -> None:
    assert text(1, "lo") == bytes.fromhex("0700 0100 6c6f0000")
    with pytest.raises(UnicodeEncodeError):
        text(1, "ü")


def test_a_message_has_its_own_length_and_is_a_request() -> None:
    assert message(16, 0x400, 7, b"abcd") == struct.pack("=IHHII", 20, 16, 0x401, 7, 0) + b"abcd"


def test_attributes_that_make_no_sense_end_the_reading() -> None:
    assert parse_attributes(attribute(1, b"a") + b"\2\0\1\0") == {1: b"a"}
    assert parse_attributes(b"\4\0") == {}


def in_namespace(*steps: object) -> str:
    """Take the steps in a child that has an empty network namespace."""
    require()
    flags = libc.CLONE_NEWNET | (0 if os.geteuid() == 0 else libc.CLONE_NEWUSER)
    return attempt(lambda: libc.unshare(flags), *steps)  # type: ignore[arg-type]


def test_every_address_becomes_local() -> None:
    def check() -> None:
        for family, addresses in (
            (socket.AF_INET, ("127.0.0.1", "192.0.2.1", "8.8.8.8")),
            (socket.AF_INET6, ("::1", "2001:db8::1")),
        ):
            with socket.create_server(("", 0), family=family) as server:
                for address in addresses:
                    with socket.create_connection((address, server.getsockname()[1]), 10):
                        server.accept()[0].close()

    assert in_namespace(check) == "ENETUNREACH", "nothing is reached before"
    assert in_namespace(lambda: netlink.make_everything_local(ipv6=True), check) == "ok"


def test_without_ipv6_only_ipv4_becomes_local() -> None:
    def ipv6() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sending:
            sending.connect(("2001:db8::1", 9))

    assert in_namespace(lambda: netlink.make_everything_local(ipv6=False), ipv6) == "ENETUNREACH"


def test_what_the_kernel_refuses_is_an_error_with_its_number() -> None:
    def twice() -> None:
        netlink.make_everything_local(ipv6=False)
        netlink.make_everything_local(ipv6=False)

    assert in_namespace(twice) == "EEXIST"

    def unknown() -> None:
        with Netlink(NETLINK_ROUTE) as link:
            link.request(0xFFF0, 0, b"\0" * 16)

    assert in_namespace(unknown) in ("EOPNOTSUPP", "ENOTSUP")


def test_an_error_to_a_dump_is_raised() -> None:
    def dump() -> None:
        with Netlink(NETLINK_NETFILTER) as link:
            link.dump(0xFF << 8 | 1, struct.pack("!BBH", 1, 0, 0))

    assert in_namespace(dump) in ("EINVAL", "EOPNOTSUPP")
