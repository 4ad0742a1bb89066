"""Other names for this machine and for its files: its own addresses, and paths through other mounts. Sends nothing."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from exeat.attack.moves import mounts

_SIOCGIFCONF = 0x8912
_IFREQ = 40  # bytes of one struct ifreq on 64-bit Linux
_ROOM = 64


def own_ipv4() -> list[str]:
    """IPv4 addresses of all interfaces that are up."""
    buffer = ctypes.create_string_buffer(_IFREQ * _ROOM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("iP", len(buffer), ctypes.addressof(buffer))
        used = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, asked))[0]
    found = [socket.inet_ntoa(buffer.raw[at + 20 : at + 24]) for at in range(0, used, _IFREQ)]
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def own_ipv6() -> list[tuple[str, str]]:
    """IPv6 addresses with their interfaces. A link-local one means nothing without."""
    found = []
    with contextlib.suppress(OSError):  # no IPv6 in this kernel
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, interface = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if not address.is_loopback:
                found.append((str(address), interface))
    return found


def pick() -> dict[str, str]:
    """One address of each kind that is ready for use: own4, own6, link6 (with its zone)."""
    chosen: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for address in own_ipv4():
            if not ipaddress.ip_address(address).is_link_local:
                chosen.setdefault("own4", address)
    for address, interface in own_ipv6():
        link = ipaddress.ip_address(address).is_link_local
        if _ready(address, interface if link else ""):
            chosen.setdefault("link6" if link else "own6", f"{address}%{interface}" if link else address)
    return chosen


def _ready(address: str, zone: str) -> bool:
    """An address that is still looked for on the wire (tentative) cannot be bound."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0, 0, socket.if_nametoindex(zone) if zone else 0))
        return True
    return False


def second_paths(path: str) -> list[str]:
    """Other paths to a file, through other mounts of its file system."""
    table = mounts()
    real = Path(path).resolve()
    own = max((mount for mount in table if real.is_relative_to(mount.point)), key=lambda each: each.point.count("/"))
    within = Path(own.root) / real.relative_to(own.point)
    candidates = [
        Path(mount.point) / within.relative_to(mount.root)
        for mount in table
        if mount.device == own.device and within.is_relative_to(mount.root)
    ]
    found = []
    for other in candidates:
        with contextlib.suppress(OSError):
            if other != real and other.samefile(real):
                found.append(str(other))
    return found
