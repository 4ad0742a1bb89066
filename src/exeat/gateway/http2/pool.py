"""Open HTTP/2 connections to servers: one for each place, shared by all that is asked there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.pool import Key, Route

if TYPE_CHECKING:
    from exeat.gateway.http2.back import Http2Upstream


class Http2Pool:
    """Connections that take another request, at most `most`, and those that only finish what is under way."""

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
        """Close the connection that nobody has used for longest. False: all are in use."""
        idle = [(upstream.idle_since, key) for key, (upstream, _) in self._open.items() if upstream.streams == 0]
        if not idle:
            return False
        self._open.pop(min(idle)[1])[0].close()
        return True

    @property
    def size(self) -> int:
        """How many are shared."""
        return len(self._open)

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
        """Close what nobody has used for too long, and forget what is closed."""
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
