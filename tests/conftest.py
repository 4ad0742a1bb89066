"""How the tests are started. Their fixtures are in tests/support/fixtures."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.own_network import take_own_network
from tests.support.starting import start_alike, take_late_imports

pytest_plugins = [
    "tests.support.fixtures.embedding",
    "tests.support.fixtures.engines",
    "tests.support.fixtures.failures",
    "tests.support.fixtures.gateways",
    "tests.support.fixtures.layers",
    "tests.support.fixtures.made_ahead",
    "tests.support.fixtures.programs",
    "tests.support.fixtures.stage",
    "tests.support.fixtures.vms",
]


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.getoption("dist", "no") != "no":
        return  # it starts the workers and runs no test; they are to find what its caller has set
    start_alike()
    # A loaded machine may take long for an example.
    settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("loaded")
    if is_worker:
        take_own_network()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests stay to the end: the garbage collector need not go through them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
