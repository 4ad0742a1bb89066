"""DNS messages (RFC 1035, EDNS of RFC 6891): a strict reader of queries and a writer of small answers.

Written by hand: a resolver that only knows its own answers needs little, and a library for all of DNS costs
more to load than the rest of the gateway. Every loop moves forward over the input, so reading is linear.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from exeat.errors import ProtocolError
from exeat.values import frozen

MAX_QUERY_BYTES: Final = 4_096  # a name has 255 bytes, and what EDNS adds is small
CLASS_IN: Final = 1
_MAX_NAME_BYTES: Final = 255
_MIN_UDP_BYTES, _MAX_UDP_BYTES = 512, 4_096  # RFC 6891 section 6.2.5: less than 512 counts as 512
_HEADER: Final = struct.Struct("!6H")
_QUESTION_END: Final = struct.Struct("!2H")
_RECORD_HEAD: Final = struct.Struct("!HHIH")  # type, class, TTL, length
_QR, _TC, _RD, _RA = 0x8000, 0x0200, 0x0100, 0x0080
_OPCODE: Final = 0x7800
# The start of authority that goes with "no such name": of the root, and all zeros, the time to keep it included. The
# name may be allowed at any moment (RFC 2308 section 5).
_SOA: Final = b"\0" + _RECORD_HEAD.pack(6, CLASS_IN, 0, 22) + bytes(22)
_QUESTION_NAME: Final = b"\xc0\x0c"  # a pointer to offset 12: the name that was asked for
_ODD: Final = re.compile(rb"[^a-z0-9_-]")
_OCTETS: Final = re.compile(r"((?:(?:0|[1-9][0-9]{0,2})\.){4})in-addr\.arpa")
_NIBBLES: Final = re.compile(r"((?:[0-9a-f]\.){32})ip6\.arpa")


class Rcode(IntEnum):
    """RFC 1035 section 4.1.1; BADVERS is RFC 6891's and needs EDNS to be said."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class QType(IntEnum):
    """The types that programs ask for. Any other number is a type too; see `type_name`."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    NULL = 10
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    NAPTR = 35
    OPT = 41
    DS = 43
    DNSKEY = 48
    TLSA = 52
    SVCB = 64
    HTTPS = 65
    IXFR = 251
    AXFR = 252
    ANY = 255
    CAA = 257


@frozen
class Query:
    """One question. `name` is lower case without the final dot, and "." for the root.

    Bytes that no host name has are written as `\\DDD`, and `plain` is then False: such a name must never be
    allowed, whatever it looks like. `question` is as it came, its case included (clients check it, "0x20").
    """

    id: int
    rd: bool
    name: str
    plain: bool
    qtype: int
    qclass: int
    question: bytes
    has_edns: bool
    udp_size: int


@frozen
class Answer:
    """One record about the name that was asked for: an address (A, AAAA), or a canonical name (PTR)."""

    value: IPv4Address | IPv6Address | str
    ttl_s: int


class DnsError(ProtocolError):
    """Not a query we answer in earnest. `rcode` None: say nothing at all, or two servers could talk for ever."""

    def __init__(self, public: str, rcode: Rcode | None, query_id: int = 0, flags: int = 0) -> None:
        super().__init__(public)
        self.rcode = rcode
        self.query_id = query_id
        self.flags = flags


def parse_query(data: bytes) -> Query:
    """The question of a message. Raises DnsError for everything that is not exactly one plain question."""
    if len(data) < _HEADER.size:
        raise DnsError("shorter than a DNS header", None)
    query_id, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & _QR:
        raise DnsError("a DNS response, not a query", None)
    try:
        if len(data) > MAX_QUERY_BYTES:
            raise _Fault("the message is too long")
        if flags & _OPCODE:
            raise _Fault("only standard queries are answered", Rcode.NOTIMP)
        if questions != 1 or answers or authorities or additional > 1:
            raise _Fault("not one question and at most one additional record")
        name, plain, at = _read_name(data, _HEADER.size)
        if len(data) < at + _QUESTION_END.size:
            raise _Fault("the question is cut off")
        qtype, qclass = _QUESTION_END.unpack_from(data, at)
        end = at + _QUESTION_END.size
        udp_size = _read_opt(data[end:]) if additional else _MIN_UDP_BYTES
        if not additional and len(data) > end:
            raise _Fault("bytes after the message")
    except _Fault as fault:
        raise DnsError(fault.public, fault.rcode, query_id, flags) from None
    question = data[_HEADER.size : end]
    return Query(query_id, bool(flags & _RD), name, plain, qtype, qclass, question, bool(additional), udp_size)


class _Fault(Exception):  # noqa: N818 - never leaves parse_query
    """What is wrong, before it is known to whom it must be said."""

    def __init__(self, public: str, rcode: Rcode = Rcode.FORMERR) -> None:
        super().__init__(public)
        self.public = public
        self.rcode = rcode


def _read_name(data: bytes, start: int) -> tuple[str, bool, int]:
    """The name at `start`, whether all its bytes are those of host names, and where it ends.

    Nothing comes before the question that a pointer could mean, so a pointer is an error: no loops.
    """
    labels: list[bytes] = []
    at = start
    while True:
        if at >= len(data):
            raise _Fault("the name is cut off")
        size = data[at]
        at += 1
        if size == 0:
            break
        if size > 63:
            raise _Fault("a pointer in the question" if size >= 0xC0 else "a label is over 63 bytes")
        if at + size > len(data):
            raise _Fault("the name is cut off")
        labels.append(data[at : at + size].lower())
        at += size
        if at + 1 - start > _MAX_NAME_BYTES:
            raise _Fault("the name is over 255 bytes")
    if not labels:
        return ".", True, at
    if not any(map(_ODD.search, labels)):
        return b".".join(labels).decode("ascii"), True, at
    return b".".join(_ODD.sub(_escape, label) for label in labels).decode("ascii"), False, at


def _escape(odd: re.Match[bytes]) -> bytes:
    """RFC 1035 section 5.1. A dot inside a label is escaped too: it must not look like two labels."""
    return b"\\%03d" % odd[0][0]


def _read_opt(data: bytes) -> int:
    """The size of answer that the one additional record, which must be EDNS and the last thing, announces."""
    if len(data) < 1 + _RECORD_HEAD.size or data[0] != 0:
        raise _Fault("the additional record is cut off or has a name")
    kind, size, ttl, length = _RECORD_HEAD.unpack_from(data, 1)
    if kind != QType.OPT:
        raise _Fault("an additional record that is not EDNS")
    at = 1 + _RECORD_HEAD.size
    if len(data) != at + length:
        raise _Fault("the EDNS record does not end with the message")
    while at < len(data):  # options: code, length, value; none of them means anything here
        if at + 4 > len(data):
            raise _Fault("an EDNS option is cut off")
        at += 4 + int.from_bytes(data[at + 2 : at + 4])
    if at != len(data):
        raise _Fault("an EDNS option is cut off")
    if ttl >> 16 & 0xFF:  # after a sound record only: the code for it is said in EDNS
        raise _Fault("an EDNS version other than 0", Rcode.BADVERS)
    return int(max(_MIN_UDP_BYTES, min(size, _MAX_UDP_BYTES)))


def encode_answer(query: Query, rcode: Rcode, records: Sequence[Answer] = (), *, tcp: bool = False) -> bytes:
    """The answer to a query. Over UDP one that does not fit says so (TC) and carries no records.

    "No such name" comes with a start of authority by which no resolver keeps it.
    """
    opt = _encode_opt(rcode) if query.has_edns else b""
    flags = _QR | _RA | (_RD if query.rd else 0) | rcode & 0xF
    body = b"".join(map(_encode_record, records))
    count = len(records)
    authority = _SOA if rcode is Rcode.NXDOMAIN else b""
    limit = 0xFFFF if tcp else query.udp_size
    if _HEADER.size + len(query.question) + len(body) + len(authority) + len(opt) > limit:
        flags, body, count = flags | _TC, b"", 0
    head = _HEADER.pack(query.id, flags, 1, count, int(bool(authority)), int(query.has_edns))
    return head + query.question + body + authority + opt


def encode_error(error: DnsError) -> bytes | None:
    """The answer to a message that could not be read; None where there must be none.

    Without the question: it was not understood, and echoing it would make us a mirror.
    """
    if error.rcode is None:
        return None
    opt = _encode_opt(error.rcode) if error.rcode is Rcode.BADVERS else b""
    flags = _QR | _RA | error.flags & (_OPCODE | _RD) | error.rcode & 0xF
    return _HEADER.pack(error.query_id, flags, 0, 0, 0, int(bool(opt))) + opt


def _encode_opt(rcode: Rcode) -> bytes:
    return b"\0" + _RECORD_HEAD.pack(QType.OPT, _MAX_UDP_BYTES, rcode >> 4 << 24, 0)


def _encode_record(record: Answer) -> bytes:
    match record.value:
        case IPv4Address():
            kind, data = QType.A, record.value.packed
        case IPv6Address():
            kind, data = QType.AAAA, record.value.packed
        case str():
            kind, data = QType.PTR, _encode_name(record.value)
    return _QUESTION_NAME + _RECORD_HEAD.pack(kind, CLASS_IN, record.ttl_s, len(data)) + data


def _encode_name(name: str) -> bytes:
    """A canonical name. The labels of one have 1 to 63 bytes, or this raises: nothing is cut to fit."""
    encoded = bytearray()
    for label in name.encode("ascii").split(b"."):
        if not 0 < len(label) < 64:
            raise ValueError("not a canonical name")
        encoded += bytes((len(label),)) + label
    if len(encoded) >= _MAX_NAME_BYTES:
        raise ValueError("not a canonical name")
    return bytes(encoded) + b"\0"


def parse_reverse(name: str) -> IPv4Address | IPv6Address | None:
    """The address that a name below in-addr.arpa or ip6.arpa stands for (RFC 1035 section 3.5, RFC 3596)."""
    if found := _OCTETS.fullmatch(name):
        octets = [int(each) for each in found[1].split(".")[3::-1]]
        return IPv4Address(bytes(octets)) if max(octets) < 256 else None
    if found := _NIBBLES.fullmatch(name):
        return IPv6Address(int(found[1].replace(".", "")[::-1], 16))
    return None


def type_name(qtype: int) -> str:
    """The type as people write it; a number without a name as `TYPE123` (RFC 3597)."""
    try:
        return QType(qtype).name
    except ValueError:
        return f"TYPE{qtype}"
