"""A warm sandbox: a container with the jail's network and a harness that waits. Nothing serves its network yet.

All of one name are identical. What makes one someone's is bound when it is claimed, out here.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from exeat.container.pool.threads import Threads
from exeat.engine.errors import NotFoundError
from exeat.jail.jail import Sockets
from exeat.jail.messages import HostPorts
from exeat.paths import printable

if TYPE_CHECKING:
    from exeat.container.harness.outcome import CallResult, Stream

_READY_S: Final = 30.0


class Harness(Protocol):
    """What answers in the container: `exeat.container.harness.client.HarnessClient`."""

    async def ready(self, timeout_s: float) -> Any: ...

    async def bind(self, variables: Mapping[str, str], files: Mapping[str, bytes]) -> None: ...

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        memory_bytes: int,
        output_bytes: int,
        result_bytes: int,
        file_bytes: int,
        on_output: Callable[[Stream, str], None] | None,
    ) -> CallResult: ...

    async def aclose(self) -> None: ...


class Made(Protocol):
    """A container that was made, adopted and started. Blocking; used by one thread at a time."""

    sockets: Sockets  # of its network; whoever serves them closes them

    @property
    def control(self) -> socket.socket:
        """Readable when the container ends."""

    def open_harness(self) -> Harness:
        """To be called in the event loop, once."""

    def why_silent(self) -> str:
        """What the harness said on its standard error, if it did not start."""

    def close(self) -> None:
        """End it, and leave nothing behind. May be called more than once."""


class Maker(Protocol):
    """How sandboxes are made."""

    async def prepare(self, name: str) -> None:
        """Have what is needed to make them: an image. Raises ExeatError."""

    def make(self, name: str) -> Made:
        """Blocks, and is called by several threads. Raises ExeatError, with nothing left behind."""

    def places_on_host(self, name: str) -> tuple[HostPorts, ...]:
        """Loopback places that mean the host's for sandboxes of this name."""

    def close(self) -> None:
        """Blocks. No sandbox is left by then."""


class WarmSandbox:
    """One that is ready to be claimed, once."""

    def __init__(self, name: str, made: Made, harness: Harness, threads: Threads) -> None:
        self.name = name
        self.made = made
        self.harness = harness
        self.is_lost = False
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._watched = -1
        self._on_lost: Callable[[WarmSandbox], None] | None = None
        self._disposal: asyncio.Task[None] | None = None

    def watch(self, on_lost: Callable[[WarmSandbox], None]) -> None:
        """Be told if the container ends: the engine may be restarted, or the machine short of memory."""
        self._on_lost = on_lost
        self._watched = self.made.control.fileno()
        self._loop.add_reader(self._watched, self._lose)

    def has_ended(self) -> bool:
        poller = select.poll()
        poller.register(self.made.control, select.POLLIN)
        return self.is_lost or bool(poller.poll(0))

    def unwatch(self) -> None:
        if self._watched >= 0:
            self._loop.remove_reader(self._watched)
            self._watched = -1

    def _lose(self) -> None:
        """Init says nothing while its command runs, so whatever comes means the end."""
        self.unwatch()
        self.is_lost = True
        if self._on_lost is not None:
            self._on_lost(self)

    def hand_over(self) -> Sockets:
        """Its network, for the one who serves it from here on, and closes it."""
        sockets, self.made.sockets = self.made.sockets, Sockets([], [], [], [])
        return sockets

    def throw_away(self) -> asyncio.Task[None]:
        """Begin its end. It goes on if nothing waits for it."""
        if self._disposal is None:
            self.unwatch()
            self._disposal = self._loop.create_task(self._end())
            self._threads.watch(self._disposal)  # some have no one else who waits
        return self._disposal

    async def _end(self) -> None:
        self.made.sockets.close()
        try:
            await self.harness.aclose()
        finally:
            await self._threads.start(self.made.close)


async def make_warm(name: str, maker: Maker, threads: Threads) -> WarmSandbox:
    """Raises ExeatError. An image that was removed meanwhile is made again."""
    try:
        return await _make_once(name, maker, threads)
    except NotFoundError:
        await maker.prepare(name)
        return await _make_once(name, maker, threads)


async def _make_once(name: str, maker: Maker, threads: Threads) -> WarmSandbox:
    """Whatever happens, what was begun ends as a sandbox or not at all."""
    job = threads.start(lambda: maker.make(name))
    try:
        made = await asyncio.shield(job)
    except asyncio.CancelledError:
        job.add_done_callback(lambda done: _undo(done, threads))
        raise
    harness: Harness | None = None
    try:
        harness = made.open_harness()
        await harness.ready(_READY_S)
        return WarmSandbox(name, made, harness, threads)
    except BaseException as error:
        if said := made.why_silent():
            error.add_note("\n".join(printable(line) for line in said.splitlines()))
        made.sockets.close()
        if harness is not None:
            await harness.aclose()
        threads.start(made.close)
        raise


def _undo(job: asyncio.Future[Made], threads: Threads) -> None:
    if not job.cancelled() and job.exception() is None:
        made = job.result()
        made.sockets.close()
        threads.start(made.close)
