"""A tunnel: two byte streams, back to back, unseen.

Each direction ends by itself (half-close): a client may finish sending and still get its answer.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, Protocol

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.splice import Splice
from exeat.gateway.limits import Budget
from exeat.reasons import Ending

if TYPE_CHECKING:
    from exeat.secrets.misuse import Detector
    from exeat.secrets.response.redaction import LeakGuard

_SPLICE_AFTER_BYTES: Final = 1024 * 1024
# What is searched at a time of a stream that may consist of the smallest of frames.
_GUARDED_A_TURN: Final = 4 * 1024
_CAN_SPLICE: Final = hasattr(os, "splice")


class Look(Protocol):
    """Who looks at what passes, without changing it."""

    def feed(self, data: bytes) -> bool:
        """False: it has seen enough."""

    def end(self) -> None: ...


class _Pump:
    """One direction."""

    __slots__ = (
        "_budget", "_copied", "_has_end", "_is_due", "_source", "_splice", "_target", "_tunnel", "_waiting",
        "ended", "guard", "look", "started", "watch",
    )  # fmt: skip

    def __init__(self, tunnel: Tunnel, source: Channel, target: Channel, budget: Budget | None) -> None:
        self._tunnel = tunnel
        self._source = source
        self._target = target
        self._budget = budget
        self._copied = 0
        self._splice: Splice | None = None
        self._waiting: bytearray | None = None  # for the guard to search it
        self._is_due = False
        self._has_end = False  # the source has ended in order, behind what waits
        self.started = self.ended = False
        self.look: Look | None = None  # who wants to see what passes, until it has seen enough
        self.watch: tuple[Detector, str] | None = None  # what must not pass, and the note if it would
        self.guard: tuple[LeakGuard, str] | None = None  # the same, with nothing of it sent before it is recognised

    def start(self) -> None:
        """Take over the source, with what it has sent so far."""
        self.started = True
        source = self._source
        self._target.fed_by(source)
        buffered = source.take()
        source.push_to(self)
        if buffered:
            self.on_data(buffered)
        if source.eof:
            self.on_eof()

    def send(self, size: int) -> None:
        """Pass on the first bytes that the source has sent, and leave it where it is."""
        self._target.fed_by(self._source)
        self.on_data(self._source.take(size))

    def on_data(self, data: bytes) -> None:
        if self.ended:
            return  # the tunnel is over, and perhaps forgotten, while what the client said was being judged
        if self.guard is None:
            self._take(data)
            return
        if self._waiting is None:
            self._waiting = bytearray()
        self._waiting += data
        if not self._is_due:
            self._go_on()

    def _go_on(self) -> None:
        """Some of what waits. All others have their turn before the next."""
        self._is_due = False
        if piece := self._next_piece():
            self._take(piece)
        if self._waiting:
            self._is_due = True
            self._source.pause_for_turn()
            self._source.loop.call_soon(self._go_on)
        elif self._source.eof:
            self.on_eof()

    def finish_waiting(self) -> None:
        """The source is gone: all that it has sent goes on now."""
        while piece := self._next_piece():
            self._take(piece)
        if self._has_end and not self.ended:
            self.on_eof()

    def _next_piece(self) -> bytes:
        """Some of what waits; nothing if nothing does."""
        waiting = self._waiting
        if not waiting:
            return b""
        piece = bytes(waiting[:_GUARDED_A_TURN])
        del waiting[:_GUARDED_A_TURN]
        return piece

    def _take(self, data: bytes) -> None:
        has_seen_enough = self.look is not None and not self.look.feed(data)
        if has_seen_enough:
            self.look = None
        if self.watch is not None:
            detector, note = self.watch
            if names := detector.feed(data):
                self._tunnel.stop(note, tuple(sorted(names)))
                return
        if self.guard is not None:
            guard, note = self.guard
            data = guard.feed(data)
            if guard.found:
                self._tunnel.stop(note, guard.found)
                return
            if not data:
                return
        if self._budget is not None:
            if not self._budget.spend(len(data)):
                self._tunnel.stop(Ending.UPLOAD_BUDGET_SPENT)
                return
        elif self.watch is None and self.guard is None:
            self._copied += len(data)
        self._target.write(data)
        if self._copied > _SPLICE_AFTER_BYTES and _CAN_SPLICE and self._tunnel.is_open:
            self._try_splice()
        if has_seen_enough:
            self._tunnel.forward()

    def forward(self) -> None:
        """Have bytes go on without Python if nothing is to be looked at. Those of a large transfer come back after a
        megabyte, for the kernel to move the rest.
        """
        is_seen = self._budget is not None or self.watch is not None or self.guard is not None
        if not is_seen and self._splice is None and self._source.forward_to(self._target, _SPLICE_AFTER_BYTES):
            self._copied = _SPLICE_AFTER_BYTES

    def _try_splice(self) -> None:
        """Hand over to the kernel."""
        source, target = self._source, self._target
        if not (source.is_plain and target.is_plain):
            self._copied = 0
            return
        if target.closed or source.closed or source.eof:
            return
        try:
            self._splice = Splice(source, target, self._on_splice_end, self._on_refused)
        except OSError:
            self._copied = 0  # it cannot be had now: try again after the next megabyte
            self.forward()
            return
        source.hand_over()

    @property
    def is_spliced(self) -> bool:
        """Is the kernel moving bytes, which it may go on with when the source's transport is gone?"""
        return self._splice is not None and not self._splice.ended

    def _on_splice_end(self, error: OSError | None) -> None:
        if error is not None or self._source.closed:
            self._tunnel.break_off(self._target, Ending.RESET)
        else:
            self._source.eof_received()

    def _on_refused(self) -> None:
        """The target has broken the connection off. What it said before is on its way, behind which is the end."""
        self.ended = True
        self._tunnel.end_broken()

    def on_eof(self) -> None:
        self._has_end = True
        if not self.ended and not self._waiting:
            self.ended = True
            if self.look is not None:
                self.look.end()
            if self.guard is not None and (rest := self.guard[0].finish()):
                self._target.write(rest)
            if not self._tunnel.close_if_ended():
                self._target.write_eof()

    def close(self) -> None:
        self.ended = True
        self._waiting = None
        if self._splice is not None:
            self._splice.close()

    def forget_tunnel(self) -> None:
        """Both connections are gone, so no one calls this any more. A cycle less: see Channel.connection_lost."""
        del self._tunnel


class Tunnel:
    """Two pumps. `done` resolves when both connections are gone."""

    __slots__ = ("_client", "_down", "_is_broken", "_up", "_upstream", "done", "note", "seen")

    def __init__(self, client: Channel, upstream: Channel, budget: Budget | None) -> None:
        self._client = client
        self._upstream = upstream
        self._up = _Pump(self, client, upstream, budget)
        self._down = _Pump(self, upstream, client, None)
        self.note = ""
        self._is_broken = False
        self.seen: tuple[str, ...] = ()  # secrets that were found on their way
        self.done: asyncio.Future[None] = client.loop.create_future()
        client.when_lost(self._on_client_lost)
        upstream.when_lost(self._on_upstream_lost)

    def watch_up(self, detector: Detector | None, note: str) -> None:
        """Cut the tunnel when the client sends what the detector looks for. Without one it is blind."""
        self._up.watch = (detector, note) if detector is not None else None

    def guard_down(self, guard: LeakGuard | None, note: str) -> None:
        """Cut the tunnel before the client gets any of what the guard looks for."""
        self._down.guard = (guard, note) if guard is not None else None

    def look_down(self, look: Look) -> None:
        """Show what the server says from now on."""
        self._down.look = look

    @property
    def has_begun(self) -> bool:
        """Do the client's bytes go out as they come?"""
        return self._up.started

    @property
    def is_open(self) -> bool:
        """May bytes go either way? Before that they must be seen here."""
        return self._up.started and self._down.look is None

    def send_up(self, size: int) -> None:
        """Let these first bytes of the client out, and no more of them yet."""
        self._up.send(size)

    def open_down(self) -> None:
        """Let the server speak: some protocols begin that way, and nothing it says can leak what is inside."""
        self._down.start()

    def open_up(self) -> None:
        """Let the client's bytes out, once they have been judged."""
        self._up.start()
        self.forward()
        if self._client.closed:
            self._on_client_lost(None)

    def forward(self) -> None:
        """Have both directions go on without Python, as far as nothing is to be looked at any more."""
        if self.is_open:
            self._up.forward()
            self._down.forward()

    def detach(self) -> None:
        """Give both channels back before a byte has moved, to be used otherwise."""
        self._client.release()
        self._upstream.release()

    def stop(self, note: str, seen: tuple[str, ...] = ()) -> None:
        """Cut both sides now. `seen`: the secrets for which that is so."""
        self.note = self.note or note
        self.seen = self.seen or seen
        self._close_pumps()
        self._client.abort()
        self._upstream.abort()

    def break_off(self, left: Channel, note: str) -> None:
        """One side has broken the connection off: so is the other, behind what had come for it."""
        self.note = self.note or note
        self._close_pumps()
        left.reset()
        (self._upstream if left is self._client else self._client).abort()

    def refuse(self, note: str, last_words: bytes) -> None:
        """Cut the upstream before it gets what was judged, and tell the client."""
        self.note = note
        self._upstream.abort()
        if last_words and not self._client.closed:
            self._client.write(last_words)
        self._client.close()

    def end_broken(self) -> None:
        """One side takes no more, but may have said something before, which is still on its way."""
        self.note = self.note or Ending.RESET
        self._is_broken = True
        self.close_if_ended()

    def close_if_ended(self) -> bool:
        """Both directions are over: closing sends what is left and the end, without a shutdown of its own."""
        if self._up.ended and self._down.ended:
            for channel in (self._client, self._upstream):
                if self._is_broken:
                    channel.reset()
                else:
                    channel.close()
            return True
        return False

    def _on_client_lost(self, exc: Exception | None) -> None:
        self._on_lost(self._up, self._upstream, exc, Ending.CLIENT_RESET)

    def _on_upstream_lost(self, exc: Exception | None) -> None:
        self._on_lost(self._down, self._client, exc, Ending.UPSTREAM_RESET)

    def _on_lost(self, pump: _Pump, other: Channel, exc: Exception | None, note: str) -> None:
        pump.finish_waiting()
        if exc is None:
            self._close_pumps()
            other.close()
        elif pump.is_spliced and not other.closed:
            self.note = self.note or note  # the kernel may still have some of what came before
        else:
            self.break_off(other, note)
        if self._client.closed and self._upstream.closed and not self.done.done():
            self._close_pumps()
            self._up.forget_tunnel()
            self._down.forget_tunnel()
            self.done.set_result(None)

    def _close_pumps(self) -> None:
        # A duplicated descriptor would keep the connection open behind the transport's back.
        self._up.close()
        self._down.close()
