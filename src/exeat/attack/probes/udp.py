"""UDP and what runs over it (E1, C7)."""

from __future__ import annotations

import os
import socket

from exeat.attack.model import BOUNDARIES, Group, Scene, need
from exeat.attack.moves import say_udp

GROUP = Group("udp", "UDP and QUIC", BOUNDARIES)
_NO_LOW = "this user cannot open well-known ports"


@GROUP.probe("E1.udp4", "UDP to 127.0.0.1 on the host")
def loopback(scene: Scene) -> str:
    return say_udp(scene, scene.udp["v4"])


@GROUP.probe("E1.udp4-own", "UDP to the machine's own address")
def own(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "own4", "the machine has no IPv4 address besides loopback"))


@GROUP.probe("E1.udp4-connected", "UDP on a connected socket, written to as a file")
def connected(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(scene.udp["v4"])
        os.write(sock.fileno(), scene.token.encode())
    return "sent"


@GROUP.probe("C7.quic", "a QUIC Initial packet to port 443")
def quic(scene: Scene) -> str:
    place = need(scene.udp, "quic", _NO_LOW)
    return say_udp(scene, place, prefix=b"\xc3\x00\x00\x00\x01\x08" + bytes(8) + b"\x00" + bytes(1180))


@GROUP.probe("E1.udp123", "UDP to port 123 (time)")
def ntp(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "ntp", _NO_LOW), prefix=b"\x23" + bytes(47))


@GROUP.probe("E1.udp5353", "UDP to port 5353 (mDNS)")
def mdns(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "mdns", "somebody else has port 5353"))


@GROUP.probe("E1.fragments", "a UDP datagram that must be cut into fragments")
def fragments(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        data = scene.token.encode() + bytes(60_000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        sock.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: fragments are welcome
        sock.sendto(data, scene.udp["v4"])
    return "sent"


@GROUP.probe("E1.udp-source53", "UDP from source port 53, as if it were an answer")
def source53(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 53))
        sock.sendto(scene.token.encode(), scene.udp["v4"])
    return "sent"
