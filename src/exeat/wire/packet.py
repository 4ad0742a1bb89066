"""Reads from a dropped packet where it wanted to go, or who refused a connection. For the record only."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

_PORTED = {6: "tcp", 17: "udp", 33: "dccp", 132: "sctp", 136: "udplite"}
_NAMES = _PORTED | {1: "icmp", 2: "igmp", 58: "icmpv6"}
_TCP = 6
_REFUSAL = (
    bytes(4),
    b"\x14",
)  # sequence number 0, RST and ACK: the answer to a first packet and to nothing else (RFC 9293)
_EXTENSIONS = frozenset((0, 43, 60))  # IPv6 headers that come before the one that counts


class Packet(NamedTuple):
    protocol: str
    destination: IPv4Address | IPv6Address
    port: int  # 0 where the protocol has none, or it was cut off
    is_refused: bool = False  # "nothing listens there", said to who wanted to connect: destination and port are theirs


def parse_packet(data: bytes) -> Packet | None:
    """Protocol, destination and port; None if this is no IP packet, or too little of one."""
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        protocol, at = data[9], (data[0] & 15) * 4
        source: IPv4Address | IPv6Address = IPv4Address(data[12:16])
        destination: IPv4Address | IPv6Address = IPv4Address(data[16:20])
    elif version == 6 and len(data) >= 40:
        protocol, at = data[6], 40
        source, destination = IPv6Address(data[8:24]), IPv6Address(data[24:40])
        while protocol in _EXTENSIONS and at + 2 <= len(data):
            protocol, at = data[at], at + (data[at + 1] + 1) * 8
    else:
        return None
    if protocol == _TCP and (data[at + 4 : at + 8], data[at + 13 : at + 14]) == _REFUSAL:
        return Packet("tcp", source, int.from_bytes(data[at : at + 2], "big"), is_refused=True)
    has_port = protocol in _PORTED and at + 4 <= len(data)
    port = int.from_bytes(data[at + 2 : at + 4], "big") if has_port else 0
    return Packet(_NAMES.get(protocol, f"ip-{protocol}"), destination, port)
