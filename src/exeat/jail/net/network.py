"""The jail's own network: loopback only, every TCP connection and DNS query redirected to sockets that are handed out.

A socket belongs to the namespace that it was made in. So the sockets are bound here, inside, and whoever
receives them accepts connections from inside while living outside. If they are closed, nothing answers.
"""

from __future__ import annotations

import socket

from exeat.jail.net import nftables as nft
from exeat.jail.net.links import OWN_IPV4, OWN_IPV6, look_connected
from exeat.jail.net.netlink import make_everything_local, open_packet_log

TABLE = "exeat"
# Above the ephemeral range (32768-60999) and below nothing that is commonly used.
GATEWAY_PORT = 61_080
DNS_PORT = 53
_BACKLOG = 4_096
_LOG_GROUP = 1
LOGGED_BYTES = 96  # IPv6 header, an extension or two, ports
LOGGED_PER_SECOND = 1_000
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
HostPorts = tuple[bytes, int, int]  # a loopback address, first and last port
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP


class Sockets:
    """What the gateway needs to serve a jail. Addresses are the jail's, not the host's."""

    __slots__ = ("dns_tcp", "dns_udp", "dropped", "tcp")

    def __init__(
        self,
        tcp: list[socket.socket],
        dns_udp: list[socket.socket],
        dns_tcp: list[socket.socket],
        dropped: list[socket.socket],
    ) -> None:
        self.tcp = tcp
        self.dns_udp = dns_udp
        self.dns_tcp = dns_tcp
        self.dropped = dropped  # news of packets that were dropped; empty where the kernel cannot tell

    def all(self) -> list[socket.socket]:
        return [*self.tcp, *self.dns_udp, *self.dns_tcp, *self.dropped]

    def close(self) -> None:
        for each in self.all():
            each.close()


def has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def open_sockets(families: list[socket.AddressFamily], tcp_port: int, dns_port: int) -> Sockets:
    """Bound to the loopback addresses of the current namespace. Port 0 is chosen once for both families."""
    sockets = Sockets([], [], [], [])
    try:
        for family in families:
            tcp = _listen(family, tcp_port)
            sockets.tcp.append(tcp)
            tcp_port = tcp.getsockname()[1]
            dns_tcp = _listen(family, dns_port)
            sockets.dns_tcp.append(dns_tcp)
            dns_port = dns_tcp.getsockname()[1]
            udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            sockets.dns_udp.append(udp)
            udp.bind((_LOOPBACK[family], dns_port))
    except BaseException:
        sockets.close()
        raise
    return sockets


def _listen(family: socket.AddressFamily, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK[family], port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def build_network(to_host: list[HostPorts]) -> Sockets:
    """Turn the empty namespace that this process is in into a jail's. Raises OSError.

    Loopback addresses are the jail's own, except for the ports in `to_host`, which the gateway is to decide on.
    """
    ipv6 = has_ipv6()
    make_everything_local(ipv6=ipv6)
    look_connected(ipv6=ipv6)
    _reuse_ports()
    log = [nft.rule(nft.limit(LOGGED_PER_SECOND), nft.log(_LOG_GROUP, LOGGED_BYTES))]
    try:
        nft.install(TABLE, _chains(to_host, log))
        dropped = [open_packet_log(_LOG_GROUP, LOGGED_BYTES)]
    except OSError:
        # No nfnetlink_log in this kernel. What is dropped stays dropped; it is only not told.
        nft.install(TABLE, _chains(to_host, []))
        dropped = []
    sockets = open_sockets([socket.AF_INET, socket.AF_INET6][: 2 if ipv6 else 1], GATEWAY_PORT, DNS_PORT)
    sockets.dropped = dropped
    return sockets


def _reuse_ports() -> None:
    """Let a closed connection's port be used again at once, as for loopback. No packet of it is under way anywhere.

    Otherwise a program that opens 14,000 connections to one host within a minute waits for ports.
    """
    try:
        with open("/proc/sys/net/ipv4/tcp_tw_reuse", "w") as setting:
            setting.write("1")
    except OSError:
        pass  # slower, and only for such programs


def _daddr(address: bytes) -> bytes:
    return nft.ip_daddr(address) if len(address) == 4 else nft.ip6_daddr(address)


def _chains(to_host: list[HostPorts], log: list[nft.Rule]) -> list[nft.Chain]:
    own_loopback = [
        nft.ip_daddr(b"\x7f"), nft.ip6_daddr(b"\0" * 15 + b"\x01"), nft.ip_daddr(OWN_IPV4), nft.ip6_daddr(OWN_IPV6)
    ]  # fmt: skip
    nat = [
        # DNS first: the name server in resolv.conf may well have a loopback address.
        nft.rule(nft.l4proto(_UDP), nft.dport(53), nft.redirect(DNS_PORT)),
        nft.rule(nft.l4proto(_TCP), nft.dport(53), nft.redirect(DNS_PORT)),
        *(
            nft.rule(_daddr(address), nft.l4proto(_TCP), nft.dports(low, high), nft.redirect(GATEWAY_PORT))
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
