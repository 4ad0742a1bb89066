"""Addresses that mean something else than they seem to (A3, D5)."""

from __future__ import annotations

import socket

from exeat.attack.model import BOUNDARIES, Group, Scene, need
from exeat.attack.moves import say_tcp, say_udp

GROUP = Group("addresses", "special addresses", BOUNDARIES)


@GROUP.probe("A3.zero4", "0.0.0.0, which the kernel takes for loopback")
def zero4(scene: Scene) -> str:
    return say_tcp(scene, ("0.0.0.0", scene.tcp["v4"][1]))


@GROUP.probe("A3.zero6", ":: (the same, IPv6)")
def zero6(scene: Scene) -> str:
    return say_tcp(scene, ("::", need(scene.tcp, "v6", "the machine has no IPv6")[1]))


@GROUP.probe("A3.zero-mapped", "::ffff:0.0.0.0")
def zero_mapped(scene: Scene) -> str:
    need(scene.tcp, "v6", "the machine has no IPv6")
    return say_tcp(scene, ("::ffff:0.0.0.0", scene.tcp["v4"][1]))


@GROUP.probe("A3.net127", "another address of 127.0.0.0/8")
def net127(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "net127", "loopback is one address only here"))


@GROUP.probe("A3.metadata", "the metadata address 169.254.169.254")
def metadata(scene: Scene) -> str:
    # Only where the harness itself holds that address: nobody else's metadata is asked for.
    return say_tcp(scene, need(scene.tcp, "metadata", "the machine does not hold that address itself"))


@GROUP.probe("A3.udp-zero", "UDP to 0.0.0.0")
def udp_zero(scene: Scene) -> str:
    return say_udp(scene, ("0.0.0.0", scene.udp["v4"][1]))


@GROUP.probe("A3.broadcast", "broadcast, on loopback's network")
def broadcast(scene: Scene) -> str:
    place = need(scene.udp, "broadcast", "no broadcast on loopback")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(scene.token.encode(), place)
    return "sent"


@GROUP.probe("A3.multicast", "multicast, on loopback")
def multicast(scene: Scene) -> str:
    place = need(scene.udp, "multicast4", "no multicast on loopback")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sock.sendto(scene.token.encode(), place)
    return "sent"
