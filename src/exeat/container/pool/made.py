"""Sandboxes as containers: made by the engine, entered by a process of the pool's own, with a harness inside."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from exeat.container.images.image import ENTRYPOINT
from exeat.container.pool.warm import Harness
from exeat.engine.owner import remove_left_over
from exeat.errors import ExeatError, JailError
from exeat.jail.container.cell import Cell, CellSpec
from exeat.jail.container.entrance import Entrance
from exeat.jail.container.ways import Name, find_way
from exeat.jail.jail import Sockets
from exeat.jail.messages import HostPorts
from exeat.run.gateway_process.rules import loopback_places
from exeat.sandbox.run_folder import RunFolder
from exeat.sources import make_policy

if TYPE_CHECKING:
    from exeat.container.builder import SandboxBuilder

_MAX_SAID: Final = 4_096


class ContainerMaker:
    """Makes the sandboxes of a builder's registry."""

    def __init__(self, builder: SandboxBuilder) -> None:
        """Blocks. Raises EngineError, JailError. What earlier programs have left at the engine is removed."""
        self._builder = builder
        self._engine = builder.engine
        self._way = find_way(self._engine)
        if self._way.name is Name.SIDECAR:
            raise JailError(
                "a pool needs an engine on this machine, where the gateway runs",
                detail=self._way.why,
                fix="run the program where the engine is, or use a sidecar: SandboxBuilder.ensure_proxy()",
            )
        remove_left_over(self._engine)
        self._folder = RunFolder()
        try:
            self._entrance = Entrance()
        except BaseException:
            self._folder.remove()
            raise
        self._images: dict[str, str] = {}

    async def prepare(self, name: str) -> None:
        self._images[name] = await self._builder.ensure_sandbox(name)

    def places_on_host(self, name: str) -> tuple[HostPorts, ...]:
        rules = self._builder.registry.sandbox(name).network.rules()
        return tuple(loopback_places(make_policy(rules)))

    def make(self, name: str) -> MadeContainer:
        made = MadeContainer(Cell(self._engine, self._way))
        try:
            made.start(self._spec(name), self._entrance, self.places_on_host(name))
        except BaseException:
            made.close()
            raise
        return made

    def _spec(self, name: str) -> CellSpec:
        limits = self._builder.registry.sandbox(name).limits
        return CellSpec(
            image=self._images[name],
            argv=list(ENTRYPOINT),
            memory=limits.memory_bytes,
            cpus=limits.cpus,
            pids=limits.pids,
            tmp_bytes=limits.tmp_bytes,
            kind="pool",
            folder=self._folder.path,
        )

    def close(self) -> None:
        self._entrance.close()
        self._folder.remove()


class MadeContainer:
    """One container. The harness speaks over a socket of ours: no engine is in between."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._talk: socket.socket | None = None
        self._said = -1  # the harness's standard error
        self.sockets = Sockets([], [], [], [])

    @property
    def control(self) -> socket.socket:
        assert self._cell.control is not None
        return self._cell.control

    def start(self, spec: CellSpec, entrance: Entrance, to_host: tuple[HostPorts, ...]) -> None:
        cell = self._cell
        cell.create(spec)
        cell.start()
        self.sockets = cell.adopt(to_host, entrance.enter)
        self._said, complaints = os.pipe2(os.O_CLOEXEC)
        self._talk, theirs = socket.socketpair()
        try:
            os.set_blocking(complaints, False)  # whoever fills it loses the rest, and never waits for a reader
            os.set_blocking(self._said, False)
            cell.release([theirs.fileno(), theirs.fileno(), complaints])
        finally:
            theirs.close()
            os.close(complaints)

    def open_harness(self) -> Harness:
        from exeat.container.harness.client import HarnessClient

        assert self._talk is not None
        talk, self._talk = self._talk, None  # the client's from here on
        return HarnessClient(talk)

    def why_silent(self) -> str:
        try:
            return os.read(self._said, _MAX_SAID).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        self.sockets.close()
        if self._talk is not None:
            self._talk.close()
        if self._said >= 0:
            os.close(self._said)
            self._said = -1
        try:
            self._cell.close()
        except ExeatError:
            pass  # the engine is gone; without a control channel the container ends by itself
