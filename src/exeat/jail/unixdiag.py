"""Which files Unix sockets are bound to, by inode: the kernel's own word, whatever their paths have become since."""

from __future__ import annotations

import socket
import struct

from exeat.jail.netlink import Netlink
from exeat.wire.netlink import parse_attributes

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_SHOW_FILE = 2
_FILE = 1
_ALL_STATES = 0xFFFFFFFF
_HEADER_BYTES = 16


def bound_inodes() -> set[int] | None:
    """Inode numbers, their lower 32 bits, of all bound sockets of this network namespace. None: the kernel cannot tell.

    The device is left out: some file systems (btrfs) show another one to users than the kernel has.
    """
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_FILE, 0, 0)
    try:
        with Netlink(_NETLINK_SOCK_DIAG) as link:
            answers = link.dump(_BY_FAMILY, request)
    except OSError:
        return None
    found = set()
    for answer in answers:
        file = parse_attributes(answer[_HEADER_BYTES:]).get(_FILE)
        if file is not None and len(file) >= 4:
            found.add(struct.unpack_from("=I", file)[0])
    return found
