"""IPv6, which rules written for IPv4 forget (E1)."""

from __future__ import annotations

import socket

from exeat.attack.model import BOUNDARIES, Group, Scene, need
from exeat.attack.moves import WAIT_S, ask, request_for, say_tcp, say_udp

GROUP = Group("ipv6", "IPv6", BOUNDARIES)
_NONE = "the machine has no IPv6"


@GROUP.probe("E1.tcp6", "TCP to ::1 on the host")
def tcp_loopback(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "v6", _NONE))


@GROUP.probe("E1.tcp6-own", "TCP to the machine's own IPv6 address")
def tcp_own(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "own6", "the machine has no IPv6 address besides loopback"))


@GROUP.probe("E1.tcp6-link", "TCP to the machine's own link-local address")
def tcp_link(scene: Scene) -> str:
    host, port = need(scene.tcp, "link6", "the machine has no link-local address")
    address, _, interface = host.partition("%")
    with socket.socket(socket.AF_INET6) as sock:
        sock.settimeout(WAIT_S)
        sock.connect((address, port, 0, socket.if_nametoindex(interface)))
        return ask(sock, request_for(scene, (address, port)))


@GROUP.probe("E1.tcp6-mapped", "TCP to 127.0.0.1 from an IPv6 socket (::ffff:127.0.0.1)")
def tcp_mapped(scene: Scene) -> str:
    need(scene.tcp, "v6", _NONE)
    host, port = scene.tcp["v4"]
    return say_tcp(scene, (f"::ffff:{host}", port))


@GROUP.probe("E1.udp6", "UDP to ::1 on the host")
def udp_loopback(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "v6", _NONE))


@GROUP.probe("E1.udp6-own", "UDP to the machine's own IPv6 address")
def udp_own(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "own6", "the machine has no IPv6 address besides loopback"))


@GROUP.probe("E1.udp6-mapped", "UDP to 127.0.0.1 from an IPv6 socket")
def udp_mapped(scene: Scene) -> str:
    need(scene.udp, "v6", _NONE)
    host, port = scene.udp["v4"]
    return say_udp(scene, (f"::ffff:{host}", port))


@GROUP.probe("E1.multicast6", "IPv6 multicast")
def multicast(scene: Scene) -> str:
    host, port = need(scene.udp, "multicast6", "no interface with IPv6 besides loopback")
    address, _, interface = host.partition("%")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.sendto(scene.token.encode(), (address, port, 0, socket.if_nametoindex(interface)))
    return "sent"
