"""Address classes: a table with both sides of every boundary, and addresses inside addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.policy import AddressClass, classify
from exeat.policy.address import carried_ipv4, holds_no_public

C = AddressClass

TABLE = [
    ("0.0.0.0", C.UNSPECIFIED),
    ("0.0.0.1", C.RESERVED),
    ("0.255.255.255", C.RESERVED),
    ("1.0.0.0", C.PUBLIC),
    ("9.255.255.255", C.PUBLIC),
    ("10.0.0.0", C.PRIVATE),
    ("10.255.255.255", C.PRIVATE),
    ("11.0.0.0", C.PUBLIC),
    ("100.63.255.255", C.PUBLIC),
    ("100.64.0.0", C.SHARED),
    ("100.127.255.255", C.SHARED),
    ("100.128.0.0", C.PUBLIC),
    ("100.100.100.200", C.METADATA),
    ("100.100.100.201", C.SHARED),
    ("126.255.255.255", C.PUBLIC),
    ("127.0.0.0", C.LOOPBACK),
    ("127.0.0.1", C.LOOPBACK),
    ("127.255.255.255", C.LOOPBACK),
    ("128.0.0.0", C.PUBLIC),
    ("168.63.129.15", C.PUBLIC),
    ("168.63.129.16", C.METADATA),
    ("168.63.129.17", C.PUBLIC),
    ("169.253.255.255", C.PUBLIC),
    ("169.254.0.0", C.LINK_LOCAL),
    ("169.254.169.254", C.METADATA),
    ("169.254.169.253", C.LINK_LOCAL),
    ("169.254.170.2", C.METADATA),
    ("169.254.255.255", C.LINK_LOCAL),
    ("169.255.0.0", C.PUBLIC),
    ("172.15.255.255", C.PUBLIC),
    ("172.16.0.0", C.PRIVATE),
    ("172.31.255.255", C.PRIVATE),
    ("172.32.0.0", C.PUBLIC),
    ("191.255.255.255", C.PUBLIC),
    ("192.0.0.1", C.RESERVED),
    ("192.0.0.192", C.METADATA),
    ("192.0.1.0", C.PUBLIC),
    ("192.0.2.1", C.RESERVED),
    ("192.88.99.1", C.RESERVED),
    ("192.167.255.255", C.PUBLIC),
    ("192.168.0.0", C.PRIVATE),
    ("192.168.255.255", C.PRIVATE),
    ("192.169.0.0", C.PUBLIC),
    ("198.17.255.255", C.PUBLIC),
    ("198.18.0.0", C.RESERVED),
    ("198.19.255.255", C.RESERVED),
    ("198.20.0.0", C.PUBLIC),
    ("198.51.100.7", C.RESERVED),
    ("203.0.113.7", C.RESERVED),
    ("223.255.255.255", C.PUBLIC),
    ("224.0.0.1", C.MULTICAST),
    ("239.255.255.255", C.MULTICAST),
    ("240.0.0.0", C.RESERVED),
    ("255.255.255.255", C.RESERVED),
    ("::", C.UNSPECIFIED),
    ("::1", C.LOOPBACK),
    ("::2", C.RESERVED),  # 0.0.0.2 inside, and in reserved space itself
    ("100::1", C.RESERVED),
    ("1fff:ffff::1", C.RESERVED),
    ("2000::1", C.PUBLIC),
    ("2001:1ff:ffff::1", C.RESERVED),
    ("2001:200::1", C.PUBLIC),
    ("2001:4860:4860::8888", C.PUBLIC),
    ("2001:db7:ffff::1", C.PUBLIC),
    ("2001:db8::1", C.RESERVED),
    ("2001:db9::1", C.PUBLIC),
    ("2606:4700:4700::1111", C.PUBLIC),
    ("3ffe:ffff::1", C.PUBLIC),
    ("3fff::1", C.RESERVED),
    ("3fff:fff:ffff::1", C.RESERVED),
    ("3fff:1000::1", C.PUBLIC),
    ("4000::1", C.RESERVED),
    ("5f00::1", C.RESERVED),
    ("9000::1", C.RESERVED),
    ("fbff::1", C.RESERVED),
    ("fc00::1", C.PRIVATE),
    ("fd00:ec2::254", C.METADATA),
    ("fd00:ec2::253", C.PRIVATE),
    ("fd20:ce::254", C.METADATA),
    ("fdff:ffff::1", C.PRIVATE),
    ("fe7f::1", C.RESERVED),
    ("fe80::1", C.LINK_LOCAL),
    ("febf:ffff::1", C.LINK_LOCAL),
    ("fec0::1", C.PRIVATE),
    ("feff::1", C.PRIVATE),
    ("ff02::1", C.MULTICAST),
    ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", C.MULTICAST),
    # Addresses inside addresses: never PUBLIC, except mapped ones, which are the IPv4 address
    ("::ffff:8.8.8.8", C.PUBLIC),
    ("::ffff:127.0.0.1", C.LOOPBACK),
    ("::ffff:169.254.169.254", C.METADATA),
    ("::127.0.0.1", C.LOOPBACK),
    ("::8.8.8.8", C.RESERVED),
    ("::ffff:0:127.0.0.1", C.LOOPBACK),
    ("::ffff:0:8.8.8.8", C.RESERVED),
    ("64:ff9b::808:808", C.RESERVED),
    ("64:ff9b::a9fe:a9fe", C.METADATA),
    ("64:ff9b::7f00:1", C.LOOPBACK),
    ("64:ff9b::a00:1", C.PRIVATE),
    ("64:ff9b:1::a9fe:a9fe", C.METADATA),
    ("64:ff9b:1:a9fe:a9:fe00::", C.METADATA),  # RFC 6052 with a /48
    ("64:ff9b:1::808:808", C.RESERVED),
    ("2002:808:808::1", C.EMBEDDED),
    ("2002:a9fe:a9fe::1", C.METADATA),
    ("2002:7f00:1::1", C.LOOPBACK),
    ("2002:a00:1::1", C.PRIVATE),
    ("2001:0:808:808::f7f7:f7f7", C.RESERVED),
    ("2001:0:808:808::80ff:fffe", C.LOOPBACK),  # Teredo client, inverted
    ("2001:0:7f00:1::f7f7:f7f7", C.LOOPBACK),  # Teredo server
    ("2606:4700::5efe:808:808", C.EMBEDDED),
    ("2606:4700::5efe:7f00:1", C.LOOPBACK),
    ("2606:4700::200:5efe:a9fe:a9fe", C.METADATA),
    ("fe80::5efe:808:808", C.LINK_LOCAL),
]


@pytest.mark.parametrize(("text", "kind"), TABLE)
def test_class_of(text: str, kind: AddressClass) -> None:
    """Every special block, both sides of its boundaries, and IPv4 wherever IPv6 can carry it."""
    assert classify(ip_address(text)) is kind


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("2606:4700::1", None),
        ("::", None),
        ("::1", None),
        ("::1.2.3.4", "1.2.3.4"),
        ("::ffff:0:1.2.3.4", "1.2.3.4"),
        ("64:ff9b::102:304", "1.2.3.4"),
        ("64:ff9b:1::102:304", "1.2.3.4"),
        ("2002:102:304::", "1.2.3.4"),
        ("2001:0:505:505::fefd:fcfb", "1.2.3.4"),
        ("2606:4700::5efe:102:304", "1.2.3.4"),
    ],
)
def test_carried_ipv4(text: str, inner: str | None) -> None:
    """The IPv4 address is taken out of each kind of wrapping."""
    assert next(iter(carried_ipv4(IPv6Address(text))), None) == (None if inner is None else IPv4Address(inner))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("10.0.0.0/8", True),
        ("10.1.0.0/16", True),
        ("127.0.0.1/32", True),
        ("168.63.129.16/32", True),
        ("168.63.129.16/31", False),
        ("224.0.0.0/3", True),  # two blocks side by side
        ("0.0.0.0/0", False),
        ("8.0.0.0/6", False),
        ("172.0.0.0/8", False),
        ("100.64.0.0/10", True),
        ("8.8.8.0/24", False),
        ("fc00::/7", True),
        ("fe80::/64", True),
        ("::/0", False),
        ("2000::/3", False),
        ("2001:db8::/32", True),
        ("2001::/16", False),
        ("8000::/1", True),
    ],
)
def test_network_wholly_inside_non_public_space(text: str, inside: bool) -> None:
    """A CIDR that also holds public addresses does not say that the inside is meant."""
    assert holds_no_public(ip_network(text)) is inside


@given(st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_network_question_agrees_with_classes(number: int, prefix: int) -> None:
    """If a network holds no public address, then neither end of it nor the sample is public."""
    network = ip_network((number >> (32 - prefix) << (32 - prefix), prefix))
    if holds_no_public(network):
        for each in (IPv4Address(number), network[0], network[-1]):
            assert classify(each) is not AddressClass.PUBLIC


@given(st.ip_addresses(v=4))
def test_no_wrapping_makes_an_address_better(inner: IPv4Address) -> None:
    """Whatever carries an IPv4 address is not public, and never hides a metadata or loopback address."""
    n = int(inner)
    if n < 2:
        return
    for wrapped in (n, 0x64FF9B << 96 | n, 0x2002 << 112 | n << 80, 0x26064700 << 96 | 0x5EFE << 32 | n):
        kind = classify(ip_address(wrapped.to_bytes(16, "big")))
        assert kind is not AddressClass.PUBLIC
        if classify(inner) in (AddressClass.METADATA, AddressClass.LOOPBACK):
            assert kind is classify(inner)
