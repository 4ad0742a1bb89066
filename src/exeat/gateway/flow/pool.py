"""Connections to servers, kept for the next request to the same place: idle ones of HTTP/1, shared ones of HTTP/2."""

from __future__ import annotations

import select
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final

from exeat.gateway.flow.channel import Channel

if TYPE_CHECKING:
    from exeat.gateway.http2.back import Http2Upstream


Key = tuple[str, int, str, bool]  # host, port, rule, over TLS
_MAX_IDLE_PER_HOST: Final = 64


# Where a connection leads: an address, and the addresses that it was found together with. Whoever takes the connection
# judges all of them for itself: that they were good for another request says nothing.
Route = tuple[str, Sequence[IPv4Address | IPv6Address]]


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
        # An answer no one asked for would become the answer to someone's next request (response smuggling).
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
            channel.release()
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
        channel.release()
        channel.hand_to(idle, idle.on_lost)
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
                idle.channel.when_lost(None)
                idle.channel.close()
        self._idle.clear()
        self.size = 0


class Http2Pool:
    """One connection for each place, shared by all that is asked there: those that take another request, at most
    `most`, and those that only finish what is under way.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Key, tuple[Http2Upstream, Route]] = {}
        self._retired: set[Http2Upstream] = set()

    def take(self, key: Key) -> tuple[Channel, Route] | None:
        """A stream to `key` and where it leads."""
        found = self._open.get(key)
        if found is None or not found[0].usable:
            return None
        upstream, route = found
        return upstream.open_stream(), route

    def give(self, key: Key, upstream: Http2Upstream, route: Route) -> None:
        """Share a connection from now on, instead of the one before. Where there are too many, one is not kept.

        That is the one which has been idle for longest, or the new one if none is.
        """
        before = self._open.pop(key, None)
        if before is not None:
            self._retired.add(before[0])
        while len(self._open) >= self._most:
            if not self._drop_idle():
                self._retired.add(upstream)
                return
        self._open[key] = upstream, route

    def _drop_idle(self) -> bool:
        """Close the connection that no one has used for longest. False: all are in use."""
        idle = [(upstream.idle_since, key) for key, (upstream, _) in self._open.items() if upstream.streams == 0]
        if not idle:
            return False
        self._open.pop(min(idle)[1])[0].close()
        return True

    @property
    def size(self) -> int:
        """How many are shared."""
        return len(self._open)

    @property
    def is_empty(self) -> bool:
        """Whether there is none, not even one that only finishes what is under way."""
        return not (self._open or self._retired)

    def set_limit(self, most: int) -> None:
        """Another limit, for what is shared from now on."""
        self._most = most

    def retire(self, upstream: Http2Upstream) -> None:
        """Only finish what is under way on this connection."""
        self._retired.add(upstream)

    def retire_all(self) -> None:
        """Under another policy they may lead elsewhere."""
        self._retired.update(upstream for upstream, _ in self._open.values())
        self._open.clear()
        self._close_unused()

    def sweep(self, now: float, idle_s: float) -> None:
        """Close what no one has used for too long, and forget what is closed."""
        for key, (upstream, _) in list(self._open.items()):
            idle = upstream.streams == 0 and now - upstream.idle_since > idle_s
            if idle or not upstream.usable:
                del self._open[key]
                self._retired.add(upstream)
        self._close_unused()

    def _close_unused(self) -> None:
        for upstream in list(self._retired):
            if upstream.closed or upstream.streams == 0:
                upstream.close()
                self._retired.discard(upstream)

    def clear(self) -> None:
        """Close all, whatever is under way."""
        for upstream in (*self._retired, *(each for each, _ in self._open.values())):
            upstream.close()
        self._retired.clear()
        self._open.clear()
