"""Networks that somebody declares to be theirs: names may lead there, as if every rule for a name said `private`.

Meant for a company's DNS that maps names to inside addresses. It never reaches what a name must not lead to in any
network: loopback, link-local and metadata addresses, and this machine's own. An address still needs its own rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from exeat.errors import ConfigError
from exeat.policy.address import IP, AddressClass, Network, classes_of, classify
from exeat.policy.host import shown, unmapped
from exeat.policy.rule import Source

_TEXT: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}(?:/[0-9]{1,3})?")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_THIS: Final = IPv4Network("0.0.0.0/8")
_INSIDE: Final = frozenset((AddressClass.PRIVATE, AddressClass.SHARED, AddressClass.RESERVED))
# Elsewhere in IPv6 lies what carries IPv4 addresses: who declares that would declare those.
_INSIDE_6: Final = frozenset((AddressClass.PRIVATE,))
_EXPECTED: Final = "a network of inside addresses, such as 10.1.0.0/16 or fd12:3456:789a::/48"


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
            f"{network} holds {kinds} addresses, to which a name may lead by a rule with private alone",
            where=where,
            expected=_EXPECTED,
        )


def declared(networks: Iterable[Network], ip: IP) -> Network | None:
    """The first of the networks that makes the address acceptable for a name, if any does."""
    ip = unmapped(ip)
    if classify(ip) not in (_INSIDE if ip.version == 4 else _INSIDE_6):
        return None
    return next((network for network in networks if ip in network), None)
