"""Packet rules as nf_tables messages: a table of ours, made whole or not at all.

The kernel takes a batch as one transaction, so there is no moment at which half of the rules hold. The `nft`
program is not needed. Each function is one expression of a rule, named as `nft` names it.
"""

from __future__ import annotations

import errno
import socket
import struct

from exeat.jail.net.hands import OWN_HANDS, Hands
from exeat.jail.net.netlink import (
    LOOPBACK_INDEX,
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    attribute,
    message,
    nested,
    text,
)
from exeat.values import Value
from exeat.wire.netlink import parse_attributes

_SUBSYSTEM = 10
_BATCH_BEGIN = 16
_BATCH_END = 17
_NEWTABLE, _GETTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE = 0, 1, 2, 3, 6
_INET = 1
FORWARD, OUTPUT, POSTROUTING = 2, 3, 4
_REGISTER = 1
_VERDICT_REGISTER = 0

# The uapi numbers of <linux/netfilter/nf_tables.h>.
_META_IIF = 4
_META_OIF = 5
_META_SKUID = 10
_META_NFPROTO = 15
_META_L4PROTO = 16
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_CT_STATUS = 2
_CT_DNAT = 1 << 5
_TABLE_OWNER = 2  # 5.12
_TABLE_PERSIST = 4  # 6.9
_EQUAL, _NOT_EQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5

PRIORITY_DSTNAT = -100
PRIORITY_BEFORE_DSTNAT = -150  # before other people's nat rules, but after connection tracking (-200)
PRIORITY_FILTER = 0
PRIORITY_LAST = 300  # after everybody's nat (100), which may give a packet another source
DROP = 0
ACCEPT = 1

Rule = bytes


def rule(*expressions: bytes) -> Rule:
    """Expressions in order; the first that does not match ends the rule."""
    return b"".join(expressions)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))


def _compare(value: bytes, operation: int = _EQUAL) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, operation), nested(3, attribute(1, value)))


def _meta(key: int, value: bytes, operation: int = _EQUAL) -> bytes:
    return _expression("meta", _number(2, key), _number(1, _REGISTER)) + _compare(value, operation)


def _payload(header: int, offset: int, value: bytes) -> bytes:
    load = _expression("payload", _number(1, _REGISTER), _number(2, header), _number(3, offset), _number(4, len(value)))
    return load + _compare(value)


def meta_skuid(uid: int) -> bytes:
    """The packet's socket was made by this uid. Not true of a socket that no one holds open any more."""
    return _meta(_META_SKUID, struct.pack("=I", uid))


def comes_from_loopback() -> bytes:
    """The packet came in by `lo`."""
    return _meta(_META_IIF, struct.pack("=I", LOOPBACK_INDEX))


def leaves_loopback() -> bytes:
    """The packet goes out by another interface than `lo`. On output, known only before nat has changed that."""
    return _meta(_META_OIF, struct.pack("=I", LOOPBACK_INDEX), _NOT_EQUAL)


def l4proto(protocol: int) -> bytes:
    return _meta(_META_L4PROTO, bytes((protocol,)))


def sport(port: int) -> bytes:
    """Source port, of whatever protocol was compared before."""
    return _payload(_TRANSPORT_HEADER, 0, struct.pack("!H", port))


def icmp_kind(kind: int, code: int) -> bytes:
    """Type and code, of whichever ICMP was compared before."""
    return _payload(_TRANSPORT_HEADER, 0, bytes((kind, code)))


def dport(port: int) -> bytes:
    """Destination port, of whatever protocol was compared before."""
    return _payload(_TRANSPORT_HEADER, 2, struct.pack("!H", port))


def dports(low: int, high: int) -> bytes:
    """Destination port in a range."""
    load = _expression("payload", _number(1, _REGISTER), _number(2, _TRANSPORT_HEADER), _number(3, 2), _number(4, 2))
    bounds = _compare(struct.pack("!H", low), _AT_LEAST) + _compare(struct.pack("!H", high), _AT_MOST)
    return load + bounds


def tcp_refusal() -> bytes:
    """The kernel's answer to a connection that nothing listens for: RST and ACK, with sequence number 0 (RFC 9293)."""
    flags = _payload(_TRANSPORT_HEADER, 13, b"\x14")
    return l4proto(socket.IPPROTO_TCP) + flags + _payload(_TRANSPORT_HEADER, 4, bytes(4))


def daddr(address: bytes) -> bytes:
    """Destinations: an IPv6 address, or what begins with these whole bytes of an IPv4 one."""
    return _address(address, 16, 24)


def saddr(address: bytes) -> bytes:
    """Sources, likewise."""
    return _address(address, 12, 8)


def _address(address: bytes, ipv4_offset: int, ipv6_offset: int) -> bytes:
    is_ipv6 = len(address) > 4
    family = _meta(_META_NFPROTO, bytes((socket.AF_INET6 if is_ipv6 else socket.AF_INET,)))
    return family + _payload(_NETWORK_HEADER, ipv6_offset if is_ipv6 else ipv4_offset, address)


def ct_status_dnat() -> bytes:
    """The connection has been redirected; true for its replies too.

    `oifname lo` would not do: what nat has just redirected does not have its new interface yet.
    """
    wanted = struct.pack("=I", _CT_DNAT)
    zero = struct.pack("=I", 0)
    load = _expression("ct", _number(2, _CT_STATUS), _number(1, _REGISTER))
    mask = _expression(
        "bitwise",
        _number(1, _REGISTER),
        _number(2, _REGISTER),
        _number(3, 4),
        nested(4, attribute(1, wanted)),
        nested(5, attribute(1, zero)),
    )
    return load + mask + _compare(zero, _NOT_EQUAL)


def redirect(port: int) -> bytes:
    """To this port of the namespace's own loopback address."""
    load = _expression("immediate", _number(1, _REGISTER), nested(2, attribute(1, struct.pack("!H", port))))
    return load + _expression("redir", _number(1, _REGISTER))


def limit(per_second: int) -> bytes:
    """True for this many packets a second."""
    rate, unit = struct.pack("!Q", per_second), struct.pack("!Q", 1)
    return _expression("limit", attribute(1, rate), attribute(2, unit), _number(3, per_second))


def log(group: int, max_bytes: int) -> bytes:
    """Tell the listeners of this nflog group, with the packet's first bytes."""
    return _expression("log", attribute(1, struct.pack("!H", group)), _number(3, max_bytes))


def verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, _VERDICT_REGISTER), nested(2, nested(2, _number(1, code))))


class Chain(Value):
    """A chain on a hook. Everything that a process of this namespace sends passes output, and then postrouting."""

    name: str
    kind: str
    priority: int
    policy: int
    rules: list[Rule]
    hook: int = OUTPUT


def install(table: str, chains: list[Chain], hands: Hands = OWN_HANDS) -> None:
    """Make the table, in place of one of the same name, in one transaction. Raises OSError.

    A new namespace has none, and nothing is deleted there: for that the kernel waits until no processor can be using it
    any more, and closing the socket waits with it, 6 to 12 ms of the start of each run.
    """
    with Netlink(NETLINK_NETFILTER, hands) as link:
        try:
            _make(link, table, chains)
        except FileExistsError:
            _make(link, table, chains, instead=True)


def _make(link: Netlink, table: str, chains: list[Chain], *, instead: bool = False) -> None:
    batch = _Batch(link)
    if instead:
        batch.add(_DELTABLE, 0, text(1, table))
    batch.add(_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, text(1, table))
    _fill(batch, table, chains)
    batch.commit()


def _fill(batch: _Batch, table: str, chains: list[Chain]) -> None:
    for chain in chains:
        hook = nested(4, _number(1, chain.hook), attribute(2, struct.pack("!i", chain.priority)))
        fields = (text(1, table), text(3, chain.name), hook, _number(5, chain.policy), text(7, chain.kind))
        batch.add(_NEWCHAIN, NLM_F_CREATE, *fields)
        for expressions in chain.rules:
            where = (text(1, table), text(2, chain.name))
            batch.add(_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, *where, nested(4, expressions))


class OwnTable:
    """A table among those of other people. As far as the kernel can do that, no one else changes or flushes it.

    Where the kernel knows owners, it removes the table when the last copy of our socket is closed, unless it can also
    keep it then: so the table outlives a crash from 6.9 on, and before 5.12.
    """

    def __init__(self, name: str, chains: list[Chain]) -> None:
        """Make it. FileExistsError if there is one of that name; OSError."""
        self.name = name
        self._link = Netlink(NETLINK_NETFILTER)
        try:
            self._flags = self._make(chains)
        except BaseException:
            self._link.close()
            raise

    def _make(self, chains: list[Chain]) -> int:
        for flags in (_TABLE_OWNER | _TABLE_PERSIST, _TABLE_OWNER):
            try:
                self._commit(NLM_F_EXCL, flags, chains)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # an older kernel does not know the flag
                    raise
            else:
                return flags
        self._commit(NLM_F_EXCL, 0, chains)
        return 0

    def _commit(self, how: int, flags: int, chains: list[Chain], *, instead: bool = False) -> None:
        batch = _Batch(self._link)
        if instead:
            batch.add(_DELTABLE, 0, text(1, self.name))
        batch.add(_NEWTABLE, NLM_F_CREATE | how, text(1, self.name), _number(2, flags))
        _fill(batch, self.name, chains)
        batch.commit()

    def replace(self, chains: list[Chain]) -> None:
        """Other rules from now on, without a moment between."""
        self._commit(0, self._flags, chains, instead=True)

    def remove(self) -> None:
        """Take it away. To be called once; that the table is gone already is no error."""
        try:
            _delete(self._link, self.name)
        finally:
            self._link.close()


def remove(table: str) -> None:
    """Take a table away that has no owner; that it is gone already is no error."""
    with Netlink(NETLINK_NETFILTER) as link:
        _delete(link, table)


def _delete(link: Netlink, table: str) -> None:
    batch = _Batch(link)
    batch.add(_DELTABLE, 0, text(1, table))
    try:
        batch.commit()
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def list_tables() -> list[str]:
    """Names of all `inet` tables."""
    with Netlink(NETLINK_NETFILTER) as link:
        found = link.dump(_SUBSYSTEM << 8 | _GETTABLE, struct.pack("!BBH", _INET, 0, 0))
    return [parse_attributes(each[4:])[1].rstrip(b"\0").decode("ascii", "replace") for each in found]


class _Batch:
    """Messages that take effect together."""

    def __init__(self, link: Netlink) -> None:
        self._link = link
        self._since = link.next_sequence()
        self._data = [self._marker(_BATCH_BEGIN, self._since)]
        self._sequences: list[int] = []

    def _marker(self, kind: int, sequence: int) -> bytes:
        return message(kind, 0, sequence, struct.pack("!BBH", 0, 0, _SUBSYSTEM))

    def add(self, kind: int, flags: int, *attributes: bytes) -> None:
        sequence = self._link.next_sequence()
        payload = struct.pack("!BBH", _INET, 0, 0) + b"".join(attributes)
        self._data.append(message(_SUBSYSTEM << 8 | kind, flags | NLM_F_ACK, sequence, payload))
        self._sequences.append(sequence)

    def commit(self) -> None:
        self._data.append(self._marker(_BATCH_END, self._link.next_sequence()))
        self._link.send(b"".join(self._data))
        self._link.wait(self._sequences, since=self._since)
