"""Where a redirected connection was meant to go: nftables has changed its destination, the kernel remembers the first.

Asked once, while the transport is being made: a descriptor's number may belong to another connection later.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
from asyncio import BaseTransport
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_log = logging.getLogger("exeat")
# linux/netfilter_ipv4.h and netfilter_ipv6/ip6_tables.h: the same number for both families.
_SO_ORIGINAL_DST: Final = 80
_LEVELS: Final = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_SOCKADDR_BYTES: Final = 28  # a sockaddr_in6; a sockaddr_in is shorter
# No such connection is tracked, or nothing here tracks connections at all: then nobody has redirected it.
_NOT_REDIRECTED: Final = (errno.ENOENT, errno.ENOPROTOOPT)


@dataclass(frozen=True, slots=True)
class Destination:
    """What a client called connect() with."""

    ip: IPv4Address | IPv6Address
    port: int


# Redirected or not, the kernel would not say where to. Never to be taken for a connection to ourselves.
NOWHERE: Final = Destination(IPv4Address(0), 0)


def find_destination(transport: BaseTransport) -> Destination | None:
    """The original destination of an accepted connection. None: it is ourselves, so the client wants a proxy."""
    offered = transport.get_extra_info("socket")
    try:
        # The loops offer a stand-in for the socket; uvloop's duplicates the descriptor for each question.
        sock = socket.socket(offered.family, socket.SOCK_STREAM, 0, offered.fileno())
        try:
            ours = sock.getsockname()
            found = parse_sockaddr(sock.getsockopt(_LEVELS[offered.family], _SO_ORIGINAL_DST, _SOCKADDR_BYTES))
        finally:
            sock.detach()
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_REDIRECTED:
            return None
        _log.warning("the original destination of a connection is unknown: %r", error)
        return NOWHERE
    return None if found == _listener(ours[0], ours[1]) else found


@lru_cache(maxsize=64)
def _listener(host: str, port: int) -> Destination:
    return Destination(ip_address(host.partition("%")[0]), port)


# A program comes back to the same few places; reading an address afresh costs about 3 us.
@lru_cache(maxsize=1_024)
def parse_sockaddr(raw: bytes) -> Destination:
    """A sockaddr_in or sockaddr_in6 as the kernel writes it. ValueError if it is neither."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    port = int.from_bytes(raw[2:4])
    if family == socket.AF_INET and len(raw) >= 16:
        return Destination(IPv4Address(raw[4:8]), port)
    if family == socket.AF_INET6 and len(raw) >= 28:
        return Destination(IPv6Address(raw[8:24]), port)  # without its zone: an address of this link is denied anyway
    raise ValueError(f"no address in {raw.hex()}")
