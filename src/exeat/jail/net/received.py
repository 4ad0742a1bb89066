"""A jail's sockets, received as descriptors."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from exeat.jail.jail import Sockets
from exeat.jail.net.network import DNS_PORT


def sort_out(received: Iterable[int], sockets: Sockets) -> None:
    """Descriptors as sockets again, told apart by what they are: it survives any change of their order."""
    for number in received:
        each = socket.socket(fileno=number)
        if each.family == socket.AF_NETLINK:
            sockets.dropped.append(each)
        elif each.type == socket.SOCK_DGRAM:
            sockets.dns_udp.append(each)
        elif each.getsockname()[1] == DNS_PORT:
            sockets.dns_tcp.append(each)
        else:
            sockets.tcp.append(each)
