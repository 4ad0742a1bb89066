"""Other names for this machine and for its files: its own addresses, and paths through other mounts. Sends nothing."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFCONF = 0x8912
_IFREQ = 40  # bytes of one struct ifreq on 64-bit Linux
_ROOM = 64


def own_ipv4() -> list[str]:
    """IPv4 addresses of all interfaces that are up."""
    import fcntl  # POSIX only, and this must be importable elsewhere

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
    with contextlib.suppress(OSError, ImportError):
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
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        mounts.append((words[2], Path(words[3]), Path(words[4])))
    real = Path(path).resolve()
    own = max((mount for mount in mounts if real.is_relative_to(mount[2])), key=lambda mount: len(mount[2].parts))
    within = own[1] / real.relative_to(own[2])
    candidates = [
        point / within.relative_to(root)
        for device, root, point in mounts
        if device == own[0] and within.is_relative_to(root)
    ]
    found = []
    for other in candidates:
        with contextlib.suppress(OSError):
            if other != real and other.samefile(real):
                found.append(str(other))
    return found
