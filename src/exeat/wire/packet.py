"""Where an IP packet that was dropped wanted to go: read from its first bytes, for the record only."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

_PORTED = {6: "tcp", 17: "udp", 33: "dccp", 132: "sctp", 136: "udplite"}
_NAMES = _PORTED | {1: "icmp", 2: "igmp", 58: "icmpv6"}
_EXTENSIONS = frozenset((0, 43, 60))  # IPv6 headers that come before the one that counts


class Packet(NamedTuple):
    protocol: str
    destination: IPv4Address | IPv6Address
    port: int  # 0 where the protocol has none, or it was cut off


def parse_packet(data: bytes) -> Packet | None:
    """Protocol, destination and port; None if this is no IP packet, or too little of one."""
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        protocol, at = data[9], (data[0] & 15) * 4
        destination: IPv4Address | IPv6Address = IPv4Address(data[16:20])
    elif version == 6 and len(data) >= 40:
        protocol, at = data[6], 40
        destination = IPv6Address(data[24:40])
        while protocol in _EXTENSIONS and at + 2 <= len(data):
            protocol, at = data[at], at + (data[at + 1] + 1) * 8
    else:
        return None
    has_port = protocol in _PORTED and at + 4 <= len(data)
    port = int.from_bytes(data[at + 2 : at + 4], "big") if has_port else 0
    return Packet(_NAMES.get(protocol, f"ip-{protocol}"), destination, port)
