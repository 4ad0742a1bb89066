"""Dropped packets: what is read of them, and that nothing they contain can break the reader."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.wire.netlink import parse_attributes, parse_logged_packets, parse_messages
from exeat.wire.packet import parse_packet


def ipv4(protocol: int, payload: bytes, options: bytes = b"") -> bytes:
    first = 0x40 | (5 + len(options) // 4)
    head = struct.pack("!BBHHHBBH4s4s", first, 0, 0, 0, 0, 64, protocol, 0, bytes(4), bytes((203, 0, 113, 9)))
    return head + options + payload


def ipv6(protocol: int, payload: bytes) -> bytes:
    destination = ip_address("2001:db8::1").packed
    return struct.pack("!IHBB16s16s", 0x6000_0000, len(payload), protocol, 64, bytes(16), destination) + payload


PORTS = struct.pack("!HH", 50_000, 443)


@pytest.mark.parametrize(
    ("data", "protocol", "destination", "port"),
    [
        (ipv4(17, PORTS), "udp", "203.0.113.9", 443),
        (ipv4(17, PORTS, options=bytes(8)), "udp", "203.0.113.9", 443),
        (ipv4(132, PORTS), "sctp", "203.0.113.9", 443),
        (ipv4(1, b"\x08\x00\x00\x00"), "icmp", "203.0.113.9", 0),
        (ipv4(47, PORTS), "ip-47", "203.0.113.9", 0),
        (ipv4(17, b"\x00"), "udp", "203.0.113.9", 0),
        (ipv6(17, PORTS), "udp", "2001:db8::1", 443),
        (ipv6(60, bytes((17, 0)) + bytes(6) + PORTS), "udp", "2001:db8::1", 443),
        (ipv6(58, b"\x80\x00"), "icmpv6", "2001:db8::1", 0),
    ],
)
def test_protocol_destination_and_port(data: bytes, protocol: str, destination: str, port: int) -> None:
    assert parse_packet(data) == (protocol, ip_address(destination), port, False)


def segment(flags: int, sequence: int = 0) -> bytes:
    return struct.pack("!HHIIBB6x", 8080, 50_000, sequence, 1, 0x50, flags)


@pytest.mark.parametrize("make", [ipv4, ipv6])
def test_a_refused_connection_is_told_by_who_refused_it(make: Callable[[int, bytes], bytes]) -> None:
    """RST and ACK without a sequence number answers a first packet; any other segment is on its way somewhere."""
    refused = parse_packet(make(6, segment(0x14)))
    assert refused is not None
    assert (refused.is_refused, refused.port, int(refused.destination)) == (True, 8080, 0)
    for other in (segment(0x14, sequence=1), segment(0x04), segment(0x02), segment(0x10), segment(0x14)[:12]):
        found = parse_packet(make(6, other))
        assert found is not None
        assert (found.is_refused, found.port) == (False, 50_000)


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60" + bytes(38), b"\x10" + bytes(60), ipv4(17, b"")[:19]])
def test_what_is_no_packet(data: bytes) -> None:
    assert parse_packet(data) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_not(data: bytes) -> None:
    parse_packet(data)
    parse_attributes(data)
    with contextlib.suppress(ValueError):  # lengths that cannot be
        parse_logged_packets(data)


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 7, 0) + payload + b"\0" * (-len(payload) % 4)


def test_packets_in_a_log_message() -> None:
    packet = ipv4(17, PORTS)
    payload = bytes(4) + struct.pack("=HH", 4 + 8, 3) + bytes(8) + struct.pack("=HH", 4 + len(packet), 9) + packet
    assert parse_logged_packets(message(4 << 8, payload) * 2 + message(3, b"")) == [packet, packet]
    assert parse_logged_packets(message(5 << 8, payload)) == []


def test_lengths_that_cannot_be() -> None:
    assert [each.sequence for each in parse_messages(message(1, b"abc"))] == [7]
    for wrong in (struct.pack("=IHHII", 15, 1, 0, 0, 0), struct.pack("=IHHII", 17, 1, 0, 0, 0)):
        with pytest.raises(ValueError, match="malformed"):
            parse_messages(wrong)
