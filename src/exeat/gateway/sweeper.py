"""Closes connections that are idle or too slow, and kept ones that are unused. One timer for a gateway."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from exeat.audit.record import encode_event
from exeat.gateway.state import State

_log = logging.getLogger("exeat")
_SWEEP_S: Final = 1.0


class Sweeper:
    """Ten thousand connections cost it about a millisecond a second.

    `always`: whatever there is, so that a log that could not be written is tried again. One of thousands of gateways
    sweeps only while it is used: ten thousand timers would take a tenth of a core.
    """

    def __init__(self, state: State, gateway: str, *, always: bool) -> None:
        self._state = state
        self._gateway = gateway
        self._always = always
        self._rejections_recorded = 0
        self._task: asyncio.Task[None] | None = None
        if always:
            self.go_on()

    def go_on(self) -> None:
        """There is a connection now, or soon."""
        if self._task is None:
            self._task = self._state.loop.create_task(self._sweep())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def is_needed(self) -> bool:
        """Whether there is a connection to a client or to a server, or anything else that time has to end."""
        state = self._state
        return bool(
            state.sessions
            or state.pool.size
            or not state.http2_pool.is_empty
            or state.counters.rejected_connections != self._rejections_recorded
        )

    async def _sweep(self) -> None:
        state = self._state
        while self._always or self.is_needed:
            await asyncio.sleep(_SWEEP_S)
            now = state.loop.time()
            for session in list(state.sessions):
                try:
                    session.check(now)
                except Exception:  # one bad connection must not end the watch over all others
                    state.counters.internal_errors += 1
                    _log.exception("connection %d could not be checked", session.number)
            self._record_rejections()
            state.pool.sweep(now)
            state.http2_pool.sweep(now, state.limits.upstream_idle_s)
            state.journal.retry()
        self._task = None

    def _record_rejections(self) -> None:
        """Connections over the limit are refused before they can say what they want: one line a second counts them."""
        rejected = self._state.counters.rejected_connections - self._rejections_recorded
        if rejected:
            self._rejections_recorded += rejected
            self._state.journal.append(
                encode_event("limit", gateway=self._gateway, sandbox=self._state.sandbox, rejected=rejected)
            )
