"""The jail's own network: loopback only, every TCP connection and DNS query redirected to sockets that are handed out.

A socket belongs to the namespace that it was made in. So the sockets are bound here, inside, and whoever
receives them accepts connections from inside while living outside. If they are closed, nothing answers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from exeat.jail.jail import Sockets
from exeat.jail.messages import HostPorts
from exeat.jail.net import netlink
from exeat.jail.net import nftables as nft
from exeat.jail.net.hands import OWN_HANDS, Hands

TABLE = "exeat"
# Above the ephemeral range (32768-60999) and below nothing that is commonly used.
GATEWAY_PORT = 61_080
DNS_PORT = 53
_BACKLOG = 4_096
_LOG_GROUP = 1
LOGGED_BYTES = 96  # IPv6 header, an extension or two, ports
LOGGED_PER_SECOND = 1_000
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP


def has_ipv6(hands: Hands = OWN_HANDS) -> bool:
    try:
        hands.open(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def open_sockets(
    families: list[socket.AddressFamily], tcp_port: int, dns_port: int, hands: Hands = OWN_HANDS
) -> Sockets:
    """Bound to the loopback addresses of the namespace. Port 0 is chosen once for both families."""
    sockets = Sockets([], [], [], [])
    try:
        for family in families:
            tcp = _listen(family, tcp_port, hands)
            sockets.tcp.append(tcp)
            tcp_port = tcp.getsockname()[1]
            dns_tcp = _listen(family, dns_port, hands)
            sockets.dns_tcp.append(dns_tcp)
            dns_port = dns_tcp.getsockname()[1]
            udp = hands.open(family, socket.SOCK_DGRAM)
            sockets.dns_udp.append(udp)
            hands.bind(udp, (_LOOPBACK[family], dns_port))
    except BaseException:
        sockets.close()
        raise
    return sockets


def _listen(family: socket.AddressFamily, port: int, hands: Hands) -> socket.socket:
    listener = hands.open(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hands.bind(listener, (_LOOPBACK[family], port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def build_network(to_host: Sequence[HostPorts], hands: Hands = OWN_HANDS) -> Sockets:
    """Turn the empty namespace that this process, or whoever has the hands, is in into a jail's. Raises OSError.

    Loopback addresses are the jail's own, except for the ports in `to_host`, which the gateway is to decide on.
    """
    ipv6 = has_ipv6(hands)
    netlink.make_everything_local(ipv6=ipv6, hands=hands)
    look_connected(ipv6=ipv6, hands=hands)
    _reuse_ports(hands)
    log = [nft.rule(nft.limit(LOGGED_PER_SECOND), nft.log(_LOG_GROUP, LOGGED_BYTES))]
    try:
        nft.install(TABLE, _chains(to_host, log), hands)
        dropped = [netlink.open_packet_log(_LOG_GROUP, LOGGED_BYTES, hands)]
    except OSError:
        # No nfnetlink_log in this kernel. What is dropped stays dropped; it is only not told.
        nft.install(TABLE, _chains(to_host, []), hands)
        dropped = []
    families = [socket.AF_INET, socket.AF_INET6][: 2 if ipv6 else 1]
    sockets = open_sockets(families, GATEWAY_PORT, DNS_PORT, hands)
    sockets.dropped.extend(dropped)
    return sockets


def _reuse_ports(hands: Hands) -> None:
    """Let a closed connection's port be used again at once, as for loopback. No packet of it is under way anywhere.

    Otherwise a program that opens 14,000 connections to one host within a minute waits for ports.
    """
    try:
        hands.set("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
    except OSError:
        pass  # slower, and only for such programs


def _chains(to_host: Sequence[HostPorts], log: list[nft.Rule]) -> list[nft.Chain]:
    own_loopback = [nft.daddr(each) for each in (b"\x7f", bytes(15) + b"\1", OWN_IPV4, OWN_IPV6)]
    nat = [
        # DNS first: the name server in resolv.conf may well have a loopback address.
        nft.rule(nft.l4proto(_UDP), nft.dport(53), nft.redirect(DNS_PORT)),
        nft.rule(nft.l4proto(_TCP), nft.dport(53), nft.redirect(DNS_PORT)),
        *(
            nft.rule(nft.daddr(address), nft.l4proto(_TCP), nft.dports(low, high), nft.redirect(GATEWAY_PORT))
            for address, low, high in to_host
        ),
        # What the jail's own processes say to each other is theirs.
        *(nft.rule(daddr, nft.verdict(nft.ACCEPT)) for daddr in own_loopback),
        nft.rule(nft.l4proto(_TCP), nft.redirect(GATEWAY_PORT)),
    ]
    kept = [
        nft.rule(nft.ct_status_dnat(), nft.verdict(nft.ACCEPT)),
        # Told and then accepted: what nothing inside listens for, the host may offer.
        *(nft.rule(nft.tcp_refusal(), each) for each in log),
        *(nft.rule(daddr, nft.verdict(nft.ACCEPT)) for daddr in own_loopback),
        *log,
    ]
    return [
        nft.Chain("nat", "nat", nft.PRIORITY_DSTNAT, nft.ACCEPT, nat),
        nft.Chain("filter", "filter", nft.PRIORITY_FILTER, nft.DROP, kept),
    ]


# Kept for documentation (RFC 5737), so no server has it; and of the prefix that spells "exeat", outside of the range
# that stands for names (gateway/doors/synthetic.py). Both are the jail's own, like loopback.
OWN_IPV4 = socket.inet_pton(socket.AF_INET, "198.51.100.1")
OWN_IPV6 = socket.inet_pton(socket.AF_INET6, "fd65:7865:6174:1::1")
_LINKS = {"exeat0": 6_101, "exeat1": 6_102}  # names and numbers, in which modules' own links (tunl0) do not come
_NO_IPV6 = "/proc/sys/net/ipv6/conf/{}/disable_ipv6"

_RTM_NEWLINK = 16
_RTM_NEWADDR = 20
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINKINFO = 3, 18
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0


def look_connected(*, ipv6: bool, hands: Hands = OWN_HANDS) -> None:
    """Have a link that is up, and an address of global scope in each family. What is not available is done without.

    Some programs look for an address that is not of loopback before they ask for addresses of its family at all
    (AI_ADDRCONFIG as c-ares and aria2 read it). Others look for a link (Chromium: `navigator.onLine`). Neither leads
    anywhere.
    """
    with netlink.Netlink(netlink.NETLINK_ROUTE, hands) as link:
        index = netlink.LOOPBACK_INDEX
        try:
            index = _join_two_ends(link, hands, ipv6=ipv6)
        except OSError:
            pass  # no veth in this kernel
        try:
            _add_address(link, socket.AF_INET, OWN_IPV4, index)  # a link without one does not count for Chromium
            if ipv6:
                _add_address(link, socket.AF_INET6, OWN_IPV6, netlink.LOOPBACK_INDEX)
        except OSError:
            pass  # such programs find no family then, as without this


def _join_two_ends(link: netlink.Netlink, hands: Hands, *, ipv6: bool) -> int:
    """A cable with both ends in here; the index of one. No route leads to it, so nothing is ever sent on it."""
    ours, theirs = (_interface(index) + netlink.text(_IFLA_IFNAME, name) for name, index in _LINKS.items())
    pair = netlink.nested(_INFO_DATA, netlink.attribute(_VETH_PEER, theirs))
    kind = netlink.nested(_IFLA_LINKINFO, netlink.text(_INFO_KIND, "veth"), pair)
    link.request(_RTM_NEWLINK, netlink.NLM_F_CREATE | netlink.NLM_F_EXCL, ours + kind)
    for name, index in _LINKS.items():
        if ipv6:
            # Otherwise the kernel itself would ask for routers and neighbours there, and be told no on record.
            hands.set(_NO_IPV6.format(name), "1")
        link.request(_RTM_NEWLINK, 0, _interface(index, _IFF_UP))
    return next(iter(_LINKS.values()))


def _add_address(link: netlink.Netlink, family: int, address: bytes, index: int) -> None:
    header = struct.pack("=BBBBI", family, len(address) * 8, 0, _SCOPE_GLOBAL, index)
    payload = header + netlink.attribute(_IFA_LOCAL, address) + netlink.attribute(_IFA_ADDRESS, address)
    link.request(_RTM_NEWADDR, netlink.NLM_F_CREATE | netlink.NLM_F_EXCL, payload)


def _interface(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)
