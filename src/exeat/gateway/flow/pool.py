"""Idle upstream connections, kept for the next request to the same host and port."""

from __future__ import annotations

import select
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from exeat.gateway.flow.channel import Channel

Key = tuple[str, int, str, bool]  # host, port, rule, over TLS
_MAX_IDLE_PER_HOST: Final = 64


class Route(NamedTuple):
    """Where a connection leads: `address`, one of the addresses that were found together.

    Whoever takes the connection judges all of them for itself: that they were good for another request says nothing.
    """

    address: str
    answer: Sequence[IPv4Address | IPv6Address]


def _has_news(channel: Channel) -> bool:
    """Has the peer of an idle connection sent anything, its end included?"""
    poll = select.poll()
    poll.register(channel.transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))


class _Idle:
    """An idle connection's receiver: whatever the server does now, the connection is no longer of use."""

    __slots__ = ("channel", "key", "pool", "route", "since")

    def __init__(self, pool: Pool, key: Key, channel: Channel, route: Route, since: float) -> None:
        self.pool = pool
        self.key = key
        self.channel = channel
        self.route = route
        self.since = since

    def on_data(self, data: bytes) -> None:
        # An answer nobody asked for would become the answer to somebody's next request (response smuggling).
        self.pool.drop(self)
        self.channel.abort()

    def on_eof(self) -> None:
        self.pool.drop(self)
        self.channel.close()

    def on_lost(self, exc: Exception | None) -> None:
        self.pool.drop(self)


class Pool:
    """Last in, first out: the connection used last is the least likely to have been closed by its server."""

    def __init__(self, max_idle: int, idle_s: float) -> None:
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: dict[Key, list[_Idle]] = {}
        self.size = 0

    def take(self, key: Key, *, must_be_open: bool) -> tuple[Channel, Route] | None:
        """A connection to `key` and where it leads.

        `must_be_open`: for a request that cannot be sent twice. The server may have closed already without
        our loop having seen it, so ask the kernel (2 us, which repeatable requests need not pay).
        """
        while waiting := self._idle.get(key):
            idle = waiting.pop()
            if not waiting:
                del self._idle[key]
            self.size -= 1
            channel = idle.channel
            channel.push_to(None)
            channel.on_lost = None
            if not must_be_open or not _has_news(channel):
                return channel, idle.route
            channel.abort()
        return None

    def give(self, key: Key, channel: Channel, route: Route) -> None:
        """Keep a connection whose last response has been read to its end, with nothing behind it."""
        waiting = self._idle.setdefault(key, [])
        if (
            self.size >= self._max_idle
            or len(waiting) >= _MAX_IDLE_PER_HOST
            or channel.eof
            or channel.buffer
            or channel.transport.is_closing()
            or channel.transport.get_write_buffer_size()  # answered without having read all of the request
        ):
            channel.abort()
            if not waiting:
                del self._idle[key]
            return
        idle = _Idle(self, key, channel, route, channel.loop.time())
        channel.producer = None
        channel.on_lost = idle.on_lost
        channel.resume_for_peer()
        channel.push_to(idle)
        waiting.append(idle)
        self.size += 1

    def drop(self, idle: _Idle) -> None:
        waiting = self._idle.get(idle.key)
        if waiting and idle in waiting:
            waiting.remove(idle)
            self.size -= 1
            if not waiting:
                del self._idle[idle.key]

    def set_limits(self, max_idle: int, idle_s: float) -> None:
        self._max_idle = max_idle
        self._idle_s = idle_s

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        for waiting in list(self._idle.values()):
            for idle in list(waiting):
                if now - idle.since > self._idle_s:
                    self.drop(idle)
                    idle.channel.close()

    def clear(self) -> None:
        for waiting in list(self._idle.values()):
            for idle in waiting:
                idle.channel.on_lost = None
                idle.channel.close()
        self._idle.clear()
        self.size = 0
