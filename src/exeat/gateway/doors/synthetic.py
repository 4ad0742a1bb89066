"""Addresses that stand for names. Inside the jail nothing is resolved: a name that could be allowed gets an
address of ours, and a connection to that address is a request for the name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from exeat.policy import unmapped

# For benchmarks in closed networks (RFC 2544): never a real destination, and programs treat it as any other.
IPV4_RANGE: Final = IPv4Network("198.18.0.0/15")
# A unique local prefix (RFC 4193) whose 40 bits of global id spell "exeat" in ASCII, so that it is known at sight
# in a log. Fixed rather than random, because these addresses never leave a namespace and so meet no other
# network's. No NAT64, 6to4 or ISATAP form: no translator takes an IPv4 address out of it.
IPV6_RANGE: Final = IPv6Network("fd65:7865:6174::/96")
# Programs keep addresses beyond the TTL: pools and browsers for minutes, some runtimes until they end, and long
# jobs reconnect to what they resolved at their start. After an hour without a question or a connection no program
# is expected back. Sooner would risk that a program talks to another name than it asked for.
GRACE_S: Final = 3_600.0

# The last octet is never 0 or 255: some programs and filters take those for a network or a broadcast address.
_PER_BLOCK: Final = 254
MAX_SIZE: Final = _PER_BLOCK * (IPV4_RANGE.num_addresses // 256)
_V4_BASE: Final = int(IPV4_RANGE.network_address)
_V6_BASE: Final = int(IPV6_RANGE.network_address)


class _Entry:
    """A name, its number in both ranges, the connections that live on it, and when it was last of use."""

    __slots__ = ("live", "name", "offset", "used")

    def __init__(self, name: str, offset: int, used: float) -> None:
        self.name = name
        self.offset = offset
        self.live = 0
        self.used = used


class SyntheticNames:
    """Names and the addresses that stand for them: one of each family, the same number in both.

    An address must never mean another name while a connection lives on it or a program may still have it in
    a cache. So when the pool is full, only the name that was of use longest ago is replaced, and only after
    `GRACE_S`. `clock` must never go back.
    """

    def __init__(self, clock: Callable[[], float], size: int = 65_536) -> None:
        if not 0 < size <= MAX_SIZE:
            raise ValueError(f"the pool has 1 to {MAX_SIZE} names")
        self._clock = clock
        self._size = size
        self._by_name: dict[str, _Entry] = {}
        self._by_offset: dict[int, _Entry] = {}
        # Names without a connection, the longest unused first. Those with one are not in it, so that finding
        # what may be replaced never walks over them.
        self._idle: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def addresses(self, name: str) -> tuple[IPv4Address, IPv6Address] | None:
        """The addresses of a canonical name, given out if it has none; None when no address may be had."""
        entry = self._by_name.get(name)
        if entry is None:
            offset = self._free_offset()
            if offset is None:
                return None
            entry = _Entry(name, offset, 0.0)
            self._by_name[name] = self._by_offset[offset] = self._idle[name] = entry
        self._touch(entry)
        return IPv4Address(_V4_BASE + entry.offset), IPv6Address(_V6_BASE + entry.offset)

    def name_of(self, ip: IPv4Address | IPv6Address) -> str | None:
        """The name that an address stands for. A caller that connects because of it must `hold` before waiting."""
        entry = self._find(ip)
        return entry.name if entry is not None else None

    def covers(self, ip: IPv4Address | IPv6Address) -> bool:
        """Whether an address is one of ours, given out or not. Such an address is never to be dialled."""
        ip = unmapped(ip)  # a socket of both families shows IPv4 peers as ::ffff:198.18.0.1
        return ip in IPV4_RANGE if isinstance(ip, IPv4Address) else ip in IPV6_RANGE

    def hold(self, ip: IPv4Address | IPv6Address) -> None:
        """A connection to the address begins. Each needs its `release`. KeyError: the address stands for nothing."""
        entry = self._find(ip)
        if entry is None:
            raise KeyError(str(ip))
        entry.live += 1
        entry.used = self._clock()
        self._idle.pop(entry.name, None)

    def release(self, ip: IPv4Address | IPv6Address) -> None:
        """A connection has ended. KeyError: there was none; a wrong count would free an address that is in use."""
        entry = self._find(ip)
        if entry is None or entry.live == 0:
            raise KeyError(str(ip))
        entry.live -= 1
        if entry.live == 0:
            self._idle[entry.name] = entry
        self._touch(entry)

    def _touch(self, entry: _Entry) -> None:
        entry.used = self._clock()
        if entry.live == 0:
            self._idle.move_to_end(entry.name)

    def _find(self, ip: IPv4Address | IPv6Address) -> _Entry | None:
        ip = unmapped(ip)
        if not self.covers(ip):
            return None
        return self._by_offset.get(int(ip) - (_V4_BASE if isinstance(ip, IPv4Address) else _V6_BASE))

    def _free_offset(self) -> int | None:
        """A number that stands for nothing: a fresh one while there are any, else the one unused for longest."""
        count = len(self._by_name)
        if count < self._size:
            # Names are only ever replaced, never dropped, so the first `count` numbers are the ones in use.
            return count // _PER_BLOCK * 256 + 1 + count % _PER_BLOCK
        oldest = next(iter(self._idle.values()), None)
        if oldest is None or self._clock() - oldest.used < GRACE_S:
            return None
        del self._by_name[oldest.name], self._by_offset[oldest.offset], self._idle[oldest.name]
        return oldest.offset
