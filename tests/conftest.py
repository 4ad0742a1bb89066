"""Fixtures shared by all tests. Nothing here reaches beyond loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gate import Gate
from tests.support.origin import Handler, Origin
from tests.support.own_network import take_own_network
from tests.support.redirected import Namespace, Namespaces, require
from tests.support.starting import start_alike, take_late_imports

StartGate = Callable[..., Gate]
StartOrigin = Callable[..., Origin]


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.getoption("dist", "no") != "no":
        return  # it starts the workers and runs no test; they are to find what its caller has set
    start_alike()
    if is_worker:
        take_own_network()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`pytest -n auto`: two for each core, because tests wait half of their time, for timers and other processes."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _nothing_is_imported_late() -> Iterator[None]:
    """What exeat needs is in memory before the command runs: on every Python, in every jail, door and feature."""
    yield
    late = take_late_imports()
    assert not late, f"imported when nothing can be any more:\n{late}"


@pytest.fixture(scope="session")
def namespaces() -> Iterator[Namespaces]:
    """Network namespaces, each made when a test first needs one."""
    made = Namespaces()
    yield made
    made.close()


@pytest.fixture
def start_gate(tmp_path: Path, namespaces: Namespaces) -> Iterator[StartGate]:
    """Start gateways that are stopped, and whose logs are checked, when the test ends.

    `redirected`: it serves a namespace as well, `gate.inside`.
    """
    gates: list[Gate] = []
    taken: list[Namespace] = []

    def start(*, redirected: bool = False, **settings: Any) -> Gate:
        if redirected:
            require()
            taken.append(namespaces.take())
            settings["inside"] = taken[-1]
        gate = Gate(tmp_path / f"audit-{len(gates)}.jsonl", **settings)
        gates.append(gate)
        return gate

    yield start
    for gate in gates:
        gate.close()
    for namespace in taken:
        namespaces.give_back(namespace)
    assert [gate.gateway.counters.internal_errors for gate in gates] == [0] * len(gates)


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
