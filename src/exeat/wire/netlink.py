"""Netlink messages as the kernel sends them: one after another, each with attributes. Values only, no sockets."""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_LOG_PACKET = 4 << 8  # nfnetlink_log's message with a packet
_LOG_PAYLOAD = 9


class Message(NamedTuple):
    kind: int
    sequence: int
    payload: bytes


def parse_messages(data: bytes) -> list[Message]:
    """The messages of one datagram. ValueError if their lengths cannot be."""
    messages = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise ValueError("malformed netlink message")
        messages.append(Message(kind, sequence, data[at + _HEADER.size : at + length]))
        at += (length + 3) & ~3
    return messages


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by kind. Of a repeated kind the last is kept."""
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return found


def parse_logged_packets(data: bytes) -> list[bytes]:
    """The first bytes of the packets that a datagram of nfnetlink_log tells of."""
    found = []
    for each in parse_messages(data):
        if each.kind == _LOG_PACKET:
            packet = parse_attributes(each.payload[4:]).get(_LOG_PAYLOAD)
            if packet:
                found.append(packet)
    return found
