"""Finds the client of an address: networks that do not overlap, sorted, so that ten thousand are as fast as ten."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses
from typing import NamedTuple

Network = IPv4Network | IPv6Network


class Held(NamedTuple):
    """A network, and whose it is."""

    network: Network
    owner: str
    last: int  # its last address


class Networks:
    """The networks of all clients. What one client has twice counts once."""

    def __init__(self) -> None:
        # Of each version the first addresses, in order, and what begins there.
        self._firsts: dict[int, list[int]] = {4: [], 6: []}
        self._held: dict[int, list[Held]] = {4: [], 6: []}
        self._of: dict[str, tuple[Network, ...]] = {}

    def meeting(self, networks: Iterable[Network]) -> tuple[Network, Held] | None:
        """The first of these that overlaps one that is held, and that one."""
        for network in networks:
            first, last = int(network.network_address), int(network.broadcast_address)
            held = self._before(network.version, last)
            if held is not None and held.last >= first:
                return network, held
        return None

    def add(self, owner: str, networks: Iterable[Network]) -> None:
        """They must meet none that is held, and the owner must have none yet."""
        own = tuple(_without_overlaps(networks))
        for network in own:
            first = int(network.network_address)
            firsts = self._firsts[network.version]
            at = bisect_right(firsts, first)
            firsts.insert(at, first)
            self._held[network.version].insert(at, Held(network, owner, int(network.broadcast_address)))
        self._of[owner] = own

    def remove(self, owner: str) -> None:
        for network in self._of.pop(owner, ()):
            at = bisect_right(self._firsts[network.version], int(network.network_address)) - 1
            del self._firsts[network.version][at], self._held[network.version][at]

    def find(self, ip: IPv4Address | IPv6Address) -> Held | None:
        """The network that an address is in."""
        held = self._before(ip.version, int(ip))
        return held if held is not None and held.last >= int(ip) else None

    def _before(self, version: int, number: int) -> Held | None:
        """The last one that begins at this address or before it. None before that one ends behind it."""
        at = bisect_right(self._firsts[version], number)
        return self._held[version][at - 1] if at else None


def _without_overlaps(networks: Iterable[Network]) -> Iterator[Network]:
    every = list(networks)
    yield from collapse_addresses(each for each in every if isinstance(each, IPv4Network))
    yield from collapse_addresses(each for each in every if isinstance(each, IPv6Network))
