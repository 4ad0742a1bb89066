"""Scenes, a gateway in front of one server with every witness watched; and the stage of the probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartGate
from tests.support.escape import Stage, open_stage
from tests.support.raw_origin import RawHandler, RawOrigin
from tests.support.redirected import why_not
from tests.support.scene import AnyName, Dials, Scene
from tests.support.server import Server

StartScene = Callable[..., Scene]
StartServer = Callable[..., Server]


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> Dials:
    """Every connection that a gateway tries to make, none of which leaves loopback."""
    made = Dials()
    monkeypatch.setattr("exeat.gateway.gates.admission.dial", made)
    return made


@pytest.fixture
def start_raw_origin() -> Iterator[Callable[..., RawOrigin]]:
    origins: list[RawOrigin] = []

    def start(handler: RawHandler | None = None, **where: Any) -> RawOrigin:
        origin = RawOrigin(handler, **where)
        origins.append(origin)
        return origin

    yield start
    for origin in origins:
        origin.close()


@pytest.fixture
def start_scene(
    start_gate: StartGate, start_raw_origin: Callable[..., RawOrigin], dials: Dials
) -> Iterator[StartScene]:
    """Start scenes. `{port}` in a rule is the server's port. Without `names` every name resolves, to loopback."""
    scenes: list[Scene] = []

    def start(
        allow: Sequence[str] = ("good.test:{port} private", "*.wild.test:{port} private"),
        *,
        handler: RawHandler | None = None,
        names: dict[str, Sequence[str]] | None = None,
        origin: RawOrigin | None = None,
        **settings: Any,
    ) -> Scene:
        server = origin or start_raw_origin(handler)
        rules = [rule.replace("{port}", str(server.port)) for rule in allow]
        gate = start_gate(allow=rules, redirected=not why_not(), **settings)
        gate.names = AnyName() if names is None else names
        scene = Scene(gate, server, dials)
        scenes.append(scene)
        return scene

    yield start
    for scene in scenes:
        scene.settle()


@pytest.fixture
def scene(start_scene: StartScene) -> Scene:
    """The scene of the catalogue: `good.test` and `*.wild.test` are allowed, on the server's port, and nothing else."""
    return start_scene()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    servers: list[Server] = []

    def start(*options: str, policy: str | None = None) -> Server:
        server = Server(tmp_path, options, policy)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """exeat installed for everybody."""
    with open_stage() as opened:
        yield opened
