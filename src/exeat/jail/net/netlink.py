"""Just enough netlink to give a network namespace its loopback, its routes and its packet rules.

pyroute2 does all of this and much more, at 200 ms of import; this is a few messages of fixed shape.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from typing import Self

from exeat.jail.net.hands import OWN_HANDS, Hands
from exeat.wire.netlink import Message, parse_messages

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLA_F_NESTED = 0x8000

_RTM_NEWLINK = 16
_RTM_NEWROUTE, _RTM_DELROUTE = 24, 25
_RTM_NEWRULE, _RTM_DELRULE = 32, 33
_IFF_UP = 1
_RT_TABLE_LOCAL = 255
_RTPROT_BOOT = 3
_RT_SCOPE_HOST = 254
_RTN_LOCAL = 2
_RTA_OIF = 4
_RTA_PREFSRC = 7
_RTA_TABLE = 15
_FRA_PRIORITY = 6
_FRA_TABLE = 15
_FRA_UID_RANGE = 20
_TO_TABLE, _PROHIBIT = 1, 8
LOOPBACK_INDEX = 1  # in every network namespace


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute: length, kind, value, padded to four bytes."""
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + b"\0" * (-length % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds others."""
    return attribute(kind | _NLA_F_NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode("ascii") + b"\0")


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags | NLM_F_REQUEST, sequence, 0) + payload


class Netlink:
    """A netlink socket of the network namespace that this thread is in."""

    def __init__(self, protocol: int, hands: Hands = OWN_HANDS) -> None:
        self._hands = hands
        self._socket = hands.open(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def detach(self) -> socket.socket:
        """The socket itself, for a caller that reads it on its own."""
        return self._socket

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def request(self, kind: int, flags: int, payload: bytes) -> None:
        """Send one message and wait for its acknowledgement. Raises OSError with the kernel's reason."""
        sequence = self.next_sequence()
        self.send(message(kind, flags | NLM_F_ACK, sequence, payload))
        self.wait({sequence})

    def send(self, data: bytes) -> None:
        self._hands.send(self._socket, data)

    def wait(self, sequences: Iterable[int], *, since: int = 0) -> None:
        """Until all of these messages have been acknowledged. What is left of those before `since` is passed over."""
        missing = set(sequences)
        while missing:
            for kind, sequence, payload in self._receive():
                if kind == _NLMSG_ERROR and sequence >= since:
                    (code,) = struct.unpack_from("=i", payload)
                    if code:
                        raise OSError(-code, f"netlink: {os.strerror(-code)}")
                    missing.discard(sequence)

    def dump(self, kind: int, payload: bytes) -> list[bytes]:
        """The payloads of all objects that the kernel lists."""
        sequence = self.next_sequence()
        self.send(message(kind, NLM_F_DUMP, sequence, payload))
        found: list[bytes] = []
        while True:
            for answer_kind, _, answer in self._receive():
                if answer_kind == _NLMSG_DONE:
                    return found
                if answer_kind == _NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", answer)
                    raise OSError(-code, f"netlink: {os.strerror(-code)}")
                found.append(answer)

    def _receive(self) -> list[Message]:
        return parse_messages(self._socket.recv(65_536))


_LOG_CONFIG = 4 << 8 | 1  # nfnetlink_log's only message to the kernel
_BIND = b"\x01"


def open_packet_log(group: int, max_bytes: int, hands: Hands = OWN_HANDS) -> socket.socket:
    """A socket that receives what packet rules log to this group, each packet at once. Raises OSError."""
    link = Netlink(NETLINK_NETFILTER, hands)
    header = struct.pack("!BBH", socket.AF_UNSPEC, 0, group)
    copy_packets = struct.pack("!IBx", max_bytes, 2)
    one = struct.pack("!I", 1)
    try:
        for payload in (attribute(1, _BIND), attribute(2, copy_packets), attribute(5, one)):
            link.request(_LOG_CONFIG, 0, header + payload)
    except BaseException:
        link.close()
        raise
    return link.detach()


def make_everything_local(*, ipv6: bool, hands: Hands = OWN_HANDS) -> None:
    """Bring `lo` up and make every address one of this namespace's own.

    Connections to anywhere then reach the nat hook and get replies. A plain default route over `lo` would
    lose IPv4 replies as martians.
    """
    with Netlink(NETLINK_ROUTE, hands) as link:
        link.request(_RTM_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, LOOPBACK_INDEX, _IFF_UP, _IFF_UP))
        for family in (socket.AF_INET, socket.AF_INET6)[: 2 if ipv6 else 1]:
            header = struct.pack(
                "=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_BOOT, _RT_SCOPE_HOST, _RTN_LOCAL, 0
            )
            oif = attribute(_RTA_OIF, struct.pack("=I", LOOPBACK_INDEX))
            link.request(_RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, header + oif)


def keep_users_here(first: int, last: int, table: int) -> None:
    """Have everything that these uids send stay on loopback, whatever else happens to it. Lasting, and idempotent.

    A route goes by the uid that made a socket, which stays when the socket is closed. Packet rules do not: what a
    closed socket still sends belongs to no one. What asks for another interface than `lo` is not in the table, and the
    second rule ends the search before it comes to other tables.
    """
    _change_users_ways(first, last, table, _RTM_NEWROUTE, _RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL)


def let_users_go(first: int, last: int, table: int) -> None:
    """Take back what `keep_users_here` did."""
    _change_users_ways(first, last, table, _RTM_DELROUTE, _RTM_DELRULE, 0)


def _change_users_ways(first: int, last: int, table: int, on_route: int, on_rule: int, flags: int) -> None:
    loopback = {socket.AF_INET: b"\x7f\0\0\1", socket.AF_INET6: b"\0" * 15 + b"\1"}
    users = attribute(_FRA_UID_RANGE, struct.pack("=II", first, last))
    with Netlink(NETLINK_ROUTE) as link:
        for family, address in loopback.items():
            route = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 0, _RTPROT_BOOT, _RT_SCOPE_HOST, _RTN_LOCAL, 0)
            route += attribute(_RTA_TABLE, struct.pack("=I", table))
            route += attribute(_RTA_OIF, struct.pack("=I", LOOPBACK_INDEX)) + attribute(_RTA_PREFSRC, address)
            rule = _rule(family, 1, _TO_TABLE) + attribute(_FRA_TABLE, struct.pack("=I", table)) + users
            refusal = _rule(family, 2, _PROHIBIT) + users
            for kind, payload in ((on_route, route), (on_rule, rule), (on_rule, refusal)):
                try:
                    link.request(kind, flags, payload)
                except (FileExistsError, FileNotFoundError, ProcessLookupError):
                    pass  # there from an earlier run, or not there any more
                except OSError:
                    if family == socket.AF_INET:
                        raise
                    break  # IPv6 is switched off


def _rule(family: int, priority: int, action: int) -> bytes:
    header = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 0, 0, 0, action, 0)
    return header + attribute(_FRA_PRIORITY, struct.pack("=I", priority))
