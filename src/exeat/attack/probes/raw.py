"""Packets made by hand: ICMP, raw IP, frames, tunnel devices (E1, E2)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from exeat.attack.model import BOUNDARIES, Absent, Evidence, Group, Place, Run, Scene, need

GROUP = Group("raw", "ICMP, raw and packet sockets", BOUNDARIES)
_ETH_P_IP = 0x0800
_ETH_P_ALL = 0x0003


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def echo(scene: Scene) -> bytes:
    body = struct.pack("!HH", 7, 1) + scene.token.encode()
    return struct.pack("!BBH", 8, 0, checksum(struct.pack("!BBH", 8, 0, 0) + body)) + body


def ip_packet(source: str, target: str, protocol: int, body: bytes) -> bytes:
    """A whole IPv4 packet."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def udp_packet(scene: Scene, source: str, place: Place) -> bytes:
    """A whole IPv4 packet that carries the token to a UDP sink."""
    data = scene.token.encode()
    return ip_packet(source, place[0], 17, struct.pack("!HHHH", 4000, place[1], 8 + len(data), 0) + data)


def _ping(kind: int) -> Run:
    def send(scene: Scene) -> str:
        if not scene.icmp:
            raise Absent("this user cannot listen for ICMP")
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as sock:
            sock.sendto(echo(scene), ("127.0.0.1", 0))
        return "sent"

    return send


GROUP.probe("E1.ping", "ICMP echo by a raw socket")(_ping(socket.SOCK_RAW))
GROUP.probe("E1.ping-socket", "ICMP echo by a ping socket")(_ping(socket.SOCK_DGRAM))


@GROUP.probe("E2.raw-udp", "a UDP packet made by hand on a raw socket")
def raw_udp(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.sendto(udp_packet(scene, "127.0.0.1", scene.udp["v4"]), ("127.0.0.1", 0))
    return "sent"


@GROUP.probe("E2.frame", "a frame on lo by a packet socket, which no packet rule sees")
def frame(scene: Scene) -> str:
    place = need(scene.udp, "own4")
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP)) as sock:
        # From a test network: a frame that claims to come from this machine is dropped as a lie.
        sock.sendto(udp_packet(scene, "198.51.100.77", place), ("lo", _ETH_P_IP, 0, 0, bytes(6)))
    return "sent"


def _opens(id: str, title: str, family: int, protocol: int) -> None:  # noqa: A002 - it is the id
    GROUP.deed(id, title, lambda _: socket.socket(family, socket.SOCK_RAW, protocol).close(), scratch=True)


_opens("E2.raw-open", "opening a raw socket", socket.AF_INET, socket.IPPROTO_ICMP)
_opens("E2.raw6-open", "opening a raw IPv6 socket", socket.AF_INET6, socket.IPPROTO_ICMPV6)
_opens("E2.packet-open", "opening a packet socket", socket.AF_PACKET, socket.htons(_ETH_P_ALL))


@GROUP.probe("E2.tun", "making a tunnel device", evidence=Evidence.DEED, scratch=True)
def tun(scene: Scene) -> str:
    if not os.path.exists("/dev/net/tun"):  # noqa: PTH110
        raise Absent("no /dev/net/tun")
    device = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"exeat%d", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    finally:
        os.close(device)
    return "made"
