"""Kinds of addresses. Our own table: `ipaddress.is_global` calls NAT64, 6to4 and more global.

Nothing here decides. A class other than PUBLIC means that reaching it must have been asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_network
from typing import Final

from exeat.errors import ConfigError
from exeat.policy.host import shown, unmapped
from exeat.policy.rule import Source

IP = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressClass(StrEnum):
    """Best first: of two classes that hold for one address, the later one is reported."""

    PUBLIC = "public"
    EMBEDDED = "embedded"
    RESERVED = "reserved"
    MULTICAST = "multicast"
    SHARED = "shared"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    UNSPECIFIED = "unspecified"
    LOOPBACK = "loopback"
    METADATA = "metadata"


_SEVERITY = {kind: rank for rank, kind in enumerate(AddressClass)}

# Most specific block first within each family; what no block contains is PUBLIC.
# IANA special-purpose registries (RFC 6890 and later), plus the places clouds keep credentials.
_BLOCKS: tuple[tuple[str, AddressClass], ...] = (
    ("169.254.169.254/32", AddressClass.METADATA),  # EC2, GCE, Azure, OpenStack, DigitalOcean
    ("169.254.170.2/32", AddressClass.METADATA),  # ECS task credentials
    ("169.254.170.23/32", AddressClass.METADATA),  # EKS pod identity
    ("169.254.0.23/32", AddressClass.METADATA),  # Tencent
    ("169.254.42.42/32", AddressClass.METADATA),  # Scaleway
    ("168.63.129.16/32", AddressClass.METADATA),  # Azure WireServer, in public space
    ("100.100.100.200/32", AddressClass.METADATA),  # Alibaba, in shared space
    ("192.0.0.192/32", AddressClass.METADATA),  # Oracle
    ("0.0.0.0/32", AddressClass.UNSPECIFIED),  # Linux connects it to loopback
    ("192.0.0.0/24", AddressClass.RESERVED),
    ("192.0.2.0/24", AddressClass.RESERVED),
    ("192.88.99.0/24", AddressClass.RESERVED),  # 6to4 relays, RFC 7526
    ("198.51.100.0/24", AddressClass.RESERVED),
    ("203.0.113.0/24", AddressClass.RESERVED),
    ("169.254.0.0/16", AddressClass.LINK_LOCAL),
    ("192.168.0.0/16", AddressClass.PRIVATE),
    ("198.18.0.0/15", AddressClass.RESERVED),  # benchmarking; also our own synthetic addresses
    ("172.16.0.0/12", AddressClass.PRIVATE),
    ("100.64.0.0/10", AddressClass.SHARED),  # carrier NAT, RFC 6598
    ("0.0.0.0/8", AddressClass.RESERVED),
    ("10.0.0.0/8", AddressClass.PRIVATE),
    ("127.0.0.0/8", AddressClass.LOOPBACK),
    ("224.0.0.0/4", AddressClass.MULTICAST),
    ("240.0.0.0/4", AddressClass.RESERVED),
    ("::/128", AddressClass.UNSPECIFIED),
    ("::1/128", AddressClass.LOOPBACK),
    ("fd00:ec2::254/128", AddressClass.METADATA),  # EC2 over IPv6
    ("fd00:ec2::23/128", AddressClass.METADATA),  # EKS pod identity over IPv6
    ("fd20:ce::254/128", AddressClass.METADATA),  # GCE over IPv6
    ("2001:db8::/32", AddressClass.RESERVED),
    ("2001::/23", AddressClass.RESERVED),  # IETF protocol assignments: Teredo, ORCHID, benchmarking
    ("3fff::/20", AddressClass.RESERVED),  # documentation, RFC 9637
    ("2002::/16", AddressClass.EMBEDDED),
    ("fe80::/10", AddressClass.LINK_LOCAL),
    ("fec0::/10", AddressClass.PRIVATE),  # site-local, RFC 3879: gone from the RFCs, not from kernels
    ("ff00::/8", AddressClass.MULTICAST),
    ("fc00::/7", AddressClass.PRIVATE),
    # Only 2000::/3 is handed out as global unicast; all the rest is refused without being named.
    ("::/3", AddressClass.RESERVED),
    ("4000::/2", AddressClass.RESERVED),
    ("8000::/1", AddressClass.RESERVED),
)


@lru_cache(maxsize=1)
def _table() -> dict[int, tuple[tuple[int, int, AddressClass], ...]]:
    """Family -> (shift, value, class): an address is in the block if `int(ip) >> shift == value`."""
    rows: dict[int, list[tuple[int, int, AddressClass]]] = {4: [], 6: []}
    for text, kind in _BLOCKS:
        block = ip_network(text)
        shift = block.max_prefixlen - block.prefixlen
        rows[block.version].append((shift, int(block.network_address) >> shift, kind))
    return {version: tuple(found) for version, found in rows.items()}


def classify(ip: IP) -> AddressClass:
    """The class of an address. One that carries an IPv4 address is never PUBLIC: the worse of the two holds.

    IPv4-mapped IPv6 is the IPv4 address itself and is judged as such.
    """
    ip = unmapped(ip)
    if isinstance(ip, IPv4Address):
        return _plain(ip)
    found = [_plain(ip)]
    inner = carried_ipv4(ip)
    if inner:
        found.append(AddressClass.EMBEDDED)
        found.extend(_plain(each) for each in inner)
    return max(found, key=_SEVERITY.__getitem__)


def _plain(ip: IP) -> AddressClass:
    number = int(ip)
    for shift, value, kind in _table()[ip.version]:
        if number >> shift == value:
            return kind
    return AddressClass.PUBLIC


def carried_ipv4(ip: IPv6Address) -> tuple[IPv4Address, ...]:
    """Every IPv4 address that a translator or tunnel might take out of this IPv6 address, likeliest first."""
    n = int(ip)
    low = n & 0xFFFF_FFFF
    match n >> 32:
        case 0 if low > 1:  # IPv4-compatible, RFC 4291 §2.5.5.1; :: and ::1 are themselves
            return (IPv4Address(low),)
        case 0x0064_FF9B_0000_0000_0000_0000:  # NAT64 well-known prefix, RFC 6052
            return (IPv4Address(low),)
        case 0xFFFF_0000:  # IPv4-translated ::ffff:0:a.b.c.d, RFC 2765
            return (IPv4Address(low),)
        case _:
            pass
    if n >> 80 == 0x0064_FF9B_0001:  # NAT64 local-use prefix, RFC 8215: the operator picks the length
        return _local_nat64(n)
    if n >> 112 == 0x2002:  # 6to4, RFC 3056
        return (IPv4Address(n >> 80 & 0xFFFF_FFFF),)
    if n >> 96 == 0x2001_0000:  # Teredo, RFC 4380: the client inverted, and the server
        return IPv4Address(low ^ 0xFFFF_FFFF), IPv4Address(n >> 64 & 0xFFFF_FFFF)
    if n >> 32 & 0xFDFF_FFFF == 0x0000_5EFE:  # ISATAP interface id, RFC 5214 §6.1, either u bit
        return (IPv4Address(low),)
    return ()


def _local_nat64(n: int) -> tuple[IPv4Address, ...]:
    """RFC 6052 §2.2 readings for prefix lengths 96, 48, 56 and 64; bits 64 to 71 are skipped."""
    readings = (
        n & 0xFFFF_FFFF,
        (n >> 64 & 0xFFFF) << 16 | (n >> 40 & 0xFFFF),
        (n >> 64 & 0xFF) << 24 | (n >> 32 & 0xFF_FFFF),
        n >> 24 & 0xFFFF_FFFF,
    )
    found = tuple(IPv4Address(each) for each in dict.fromkeys(readings) if each)
    return found or (IPv4Address(0),)


def classes_of(network: Network) -> frozenset[AddressClass]:
    """The classes that addresses of the network have, apart from what they may carry."""
    shift = network.max_prefixlen - network.prefixlen
    value = int(network.network_address) >> shift
    found: set[AddressClass] = set()
    for block_shift, block_value, kind in _table()[network.version]:
        if block_shift >= shift and value >> (block_shift - shift) == block_value:
            return frozenset((*found, kind))
        if block_shift < shift and block_value >> (shift - block_shift) == value:
            found.add(kind)
    return frozenset(found if holds_no_public(network) else (*found, AddressClass.PUBLIC))


def holds_no_public(network: Network) -> bool:
    """Whether every address of the network is non-public. Only such a CIDR can mean "I want the inside".

    0.0.0.0/0 contains 10.0.0.0/8, but who writes it means the internet.
    """
    shift = network.max_prefixlen - network.prefixlen
    value = int(network.network_address) >> shift
    return any(wider >= shift and value >> (wider - shift) == base for wider, base in _inside_space(network.version))


@lru_cache(maxsize=2)
def _inside_space(version: int) -> tuple[tuple[int, int], ...]:
    """The blocks of a family, neighbours joined: a network that they cover together lies in one of these."""
    blocks = (ip_network(text) for text, _ in _BLOCKS if (":" in text) == (version == 6))
    joined = collapse_addresses(blocks)  # type: ignore[type-var]  # all of one family
    shifts = ((block.max_prefixlen - block.prefixlen, block) for block in joined)
    return tuple((shift, int(block.network_address) >> shift) for shift, block in shifts)


_TEXT: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}(?:/[0-9]{1,3})?")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_THIS: Final = IPv4Network("0.0.0.0/8")
_INSIDE: Final = frozenset((AddressClass.PRIVATE, AddressClass.SHARED, AddressClass.RESERVED))
# Elsewhere in IPv6 lies what carries IPv4 addresses: who declares that would declare those.
_INSIDE_6: Final = frozenset((AddressClass.PRIVATE,))
_EXPECTED: Final = "a network of internal addresses, such as 10.1.0.0/16 or fd12:3456:789a::/48"


def parse_private_network(text: str, source: Source) -> Network:
    """Read a CIDR, or an address. One that means more than inside addresses is refused. Raises ConfigError."""
    where = str(source)
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not _TEXT.fullmatch(bare):
        raise ConfigError(f"{shown(text)} is not a network", where=where, expected=_EXPECTED)
    try:
        network: Network = ip_network(bare, strict=False)
    except ValueError:
        raise ConfigError(f"{shown(text)} is not a network", where=where, expected=_EXPECTED) from None
    if "/" in bare and ip_network(bare.partition("/")[0]).network_address != network.network_address:
        raise ConfigError(f"{shown(text)} has bits set to the right of its prefix", where=where, expected=str(network))
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        network = IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    _refuse_others(network, where)
    return network


def _refuse_others(network: Network, where: str) -> None:
    """Metadata addresses may lie in a wider network (100.64.0.0/10 has one): they are never acceptable there."""
    found = classes_of(network)
    inside = _INSIDE if network.version == 4 else _INSIDE_6
    if AddressClass.PUBLIC in found:
        raise ConfigError(
            f"{network} holds public addresses, which need no such setting", where=where, expected=_EXPECTED
        )
    others = found - inside
    if found & inside:
        others -= {AddressClass.METADATA}
    if others or (isinstance(network, IPv4Network) and network.overlaps(_THIS)):
        kinds = " and ".join(sorted(others)) or "unspecified"
        raise ConfigError(
            f"{network} holds {kinds} addresses, to which a name may lead only by a rule with private",
            where=where,
            expected=_EXPECTED,
        )


def declared(networks: Iterable[Network], ip: IP) -> Network | None:
    """The first of the networks that makes the address acceptable for a name, if any does."""
    ip = unmapped(ip)
    if classify(ip) not in (_INSIDE if ip.version == 4 else _INSIDE_6):
        return None
    return next((network for network in networks if ip in network), None)
