"""Fixtures shared by all tests. Nothing here reaches beyond loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.gate import Gate
from tests.support.gateways.redirected import Namespace, Namespaces, require
from tests.support.origins.plain import Handler, Origin
from tests.support.starting import start_alike, take_late_imports

start_alike()

# Jails, ports 80 and 443, packet rules, real programs: one such test at a time. All others may run beside them.
_ON_THE_MACHINE = (
    "clients/", "unit/jail/", "unit/run/", "unit/attack/", "integration/test_run", "integration/test_demo",
    "threats/jail/", "threats/records/test_out_of_reach", "threats/files/test_state_folder",
    "threats/project/test_nested_runs", "threats/secrets/test_covers", "threats/secrets/test_hidden_files",
    "threats/secrets/test_from_the_jail", "threats/tunnels/test_web_ports",
)  # fmt: skip
# Of these, what is in nobody's way, so that both halves take as long. Packet rules are in everybody's.
_BESIDE_THEM = (
    "integration/test_run_ui", "integration/test_run_embed", "integration/test_run_ask", "integration/test_run_named",
    "integration/test_run_learn", "integration/test_run_proxy", "unit/run/", "clients/test_",
    "clients/secrets/test_matrix", "threats/jail/test_devices", "threats/jail/test_inherited_files",
    "threats/jail/test_nft_packets",
)  # fmt: skip

StartGate = Callable[..., Gate]
StartOrigin = Callable[..., Origin]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here).as_posix()
        beside = path.startswith(_BESIDE_THEM) and "nft" not in item.name
        if path.startswith(_ON_THE_MACHINE) and not beside:
            item.add_marker("machine")


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
