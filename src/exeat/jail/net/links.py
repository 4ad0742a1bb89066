"""What makes programs believe that there is a network, in a namespace that has none.

Some look for an address that is not of loopback before they ask for addresses of its family at all (AI_ADDRCONFIG as
c-ares and aria2 read it). Others look for a link that is up (Chromium: `navigator.onLine`). Neither leads anywhere.
"""

from __future__ import annotations

import socket
import struct

from exeat.jail.net.netlink import (
    LOOPBACK_INDEX,
    NETLINK_ROUTE,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    attribute,
    nested,
    text,
)

# Kept for documentation (RFC 5737), so no server has it; and of the prefix that spells "exeat", outside of the range
# that stands for names (gateway/doors/synthetic.py). Both are the jail's own, like loopback.
OWN_IPV4 = socket.inet_pton(socket.AF_INET, "198.51.100.1")
OWN_IPV6 = socket.inet_pton(socket.AF_INET6, "fd65:7865:6174:1::1")
_LINKS = ("exeat0", "exeat1")
_NO_IPV6 = "/proc/sys/net/ipv6/conf/{}/disable_ipv6"

_RTM_NEWLINK = 16
_RTM_NEWADDR = 20
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINKINFO = 3, 18
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0


def look_connected(*, ipv6: bool) -> None:
    """Have a link that is up, and an address of global scope in each family. What cannot be had is done without."""
    with Netlink(NETLINK_ROUTE) as link:
        index = LOOPBACK_INDEX
        try:
            index = _join_two_ends(link, ipv6=ipv6)
        except OSError:
            pass  # no veth in this kernel
        try:
            _add_address(link, socket.AF_INET, OWN_IPV4, index)  # a link without one does not count for Chromium
            if ipv6:
                _add_address(link, socket.AF_INET6, OWN_IPV6, LOOPBACK_INDEX)
        except OSError:
            pass  # such programs find no family then, as without this


def _join_two_ends(link: Netlink, *, ipv6: bool) -> int:
    """A cable with both ends in here; the index of one. No route leads to it, so nothing is ever sent on it."""
    ours, theirs = (_interface(0) + text(_IFLA_IFNAME, name) for name in _LINKS)
    pair = nested(_INFO_DATA, attribute(_VETH_PEER, theirs))
    kind = nested(_IFLA_LINKINFO, text(_INFO_KIND, "veth"), pair)
    link.request(_RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, ours + kind)
    for name in _LINKS:
        if ipv6:
            # Otherwise the kernel itself would ask for routers and neighbours there, and be told no on record.
            with open(_NO_IPV6.format(name), "w") as setting:
                setting.write("1")
        link.request(_RTM_NEWLINK, 0, _interface(socket.if_nametoindex(name), _IFF_UP))
    return socket.if_nametoindex(_LINKS[0])


def _add_address(link: Netlink, family: int, address: bytes, index: int) -> None:
    header = struct.pack("=BBBBI", family, len(address) * 8, 0, _SCOPE_GLOBAL, index)
    payload = header + attribute(_IFA_LOCAL, address) + attribute(_IFA_ADDRESS, address)
    link.request(_RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, payload)


def _interface(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)
