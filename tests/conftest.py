"""Fixtures shared by all tests. Nothing here reaches beyond loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gate import Gate
from tests.support.origin import Handler, Origin

StartGate = Callable[..., Gate]
StartOrigin = Callable[..., Origin]


@pytest.fixture
def start_gate(tmp_path: Path) -> Iterator[StartGate]:
    """Start gateways that are stopped, and whose logs are checked, when the test ends."""
    gates: list[Gate] = []

    def start(**settings: Any) -> Gate:
        gate = Gate(tmp_path / f"audit-{len(gates)}.jsonl", **settings)
        gates.append(gate)
        return gate

    yield start
    for gate in gates:
        gate.close()
        assert gate.gateway.counters.internal_errors == 0


@pytest.fixture
def start_origin() -> Iterator[StartOrigin]:
    origins: list[Origin] = []

    def start(handler: Handler | None = None, **settings: Any) -> Origin:
        origin = Origin(handler, **settings)
        origins.append(origin)
        return origin

    yield start
    for origin in origins:
        origin.close()
