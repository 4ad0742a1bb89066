"""How the tests are collected and started. Their fixtures are in tests/support/fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.starting import start_alike, take_late_imports

start_alike()

pytest_plugins = [
    "tests.support.fixtures.gateways",
    "tests.support.fixtures.layers",
    "tests.support.fixtures.programs",
    "tests.support.fixtures.stage",
]

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
