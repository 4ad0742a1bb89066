"""A maker of sandboxes without containers. Their listeners are real, so a claim's gateway serves them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from exeat.engine.errors import EngineError
from exeat.errors import ExeatError
from exeat.jail.jail import Sockets
from exeat.jail.messages import HostPorts
from exeat.jail.net.network import open_sockets


class FakeHarness:
    """Answers with what it was asked, and keeps what it was bound to."""

    def __init__(self, made: FakeMade) -> None:
        self._made = made
        self.variables: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.is_asked = False
        self.is_closed = False

    async def ready(self, timeout_s: float) -> None:
        self.is_asked = True
        await self._made.maker.readiness.wait()
        if self._made.maker.breaks_in_ready:
            raise ExeatError("the harness does not answer")

    async def bind(self, variables: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        await asyncio.sleep(0)
        if self._made.maker.breaks_in_bind:
            raise ExeatError("the harness was lost")
        self.variables, self.files = dict(variables), dict(files)

    async def call(self, tool: str, arguments: Mapping[str, Any], **limits: Any) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(value={"tool": tool, "number": self._made.number, **arguments}, limits=limits)

    async def aclose(self) -> None:
        self.is_closed = True


class FakeMade:
    def __init__(self, maker: FakeMaker, number: int) -> None:
        self.maker = maker
        self.number = number
        self.sockets: Sockets = open_sockets([socket.AF_INET], 0, 0)
        self.port: int = self.sockets.tcp[0].getsockname()[1]  # for who comes to it as to a proxy
        self.control, self._init = socket.socketpair()
        self.harness = FakeHarness(self)
        self.is_closed = False

    def open_harness(self) -> FakeHarness:
        return self.harness

    def why_silent(self) -> str:
        return "python3: not found"

    def end(self) -> None:
        """As if the engine had ended it."""
        self._init.close()

    def close(self) -> None:
        self.maker.closing.wait()
        self.is_closed = True
        self.sockets.close()
        self.control.close()
        self._init.close()


@dataclass
class FakeMaker:
    """`gate` holds up making, `closing` holds up ending, `fails` are the errors of the next tries."""

    made: list[FakeMade] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    is_down: bool = False
    breaks_in_ready: bool = False
    breaks_in_bind: bool = False
    at_once: int = 0
    most_at_once: int = 0
    prepared: list[str] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.closing = threading.Event()
        self.closing.set()
        self.readiness = asyncio.Event()
        self.readiness.set()
        self._lock = threading.Lock()

    async def prepare(self, name: str) -> None:
        self.prepared.append(name)

    def make(self, name: str) -> FakeMade:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.gate.wait(30)
            with self._lock:
                if self.fails:
                    raise self.fails.pop(0)
                if self.is_down:
                    raise EngineError("the engine does not answer", detail="socket: refused")
                made = FakeMade(self, len(self.made))
                self.made.append(made)
            return made
        finally:
            with self._lock:
                self.at_once -= 1

    def places_on_host(self, name: str) -> tuple[HostPorts, ...]:
        return ()

    def close(self) -> None:
        self.is_closed = True

    @property
    def left(self) -> list[int]:
        """The numbers of those that have not been ended."""
        return [each.number for each in self.made if not each.is_closed]


def builder_of(*rules: str, names: tuple[str, ...] = ("default",)) -> Any:
    """A builder whose registry has these sandboxes, all with the same NetworkPolicy."""
    limits = SimpleNamespace(call_s=60.0, call_memory_bytes=1 << 28, output_bytes=1 << 20, tmp_bytes=1 << 26)
    config = SimpleNamespace(network=SimpleNamespace(rules=lambda: rules), limits=limits)

    def sandbox(name: str) -> Any:
        if name not in names:
            raise ValueError(f"there is no sandbox {name!r}")
        return config

    return SimpleNamespace(registry=SimpleNamespace(sandbox=sandbox))
