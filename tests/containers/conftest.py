"""Which of the tests with real engines run: all of them with `make test-containers`, and in CI.

Otherwise each with one engine, mostly root's Docker, because starting four of them takes longer than most tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engines.base import DOCKER_ROOT, WAYS

ALL = "EXEAT_TEST_ENGINES"
_LONGEST_FIRST = sorted(WAYS, key=lambda way: -len(way.name))  # one name is part of another
# What needs an image of its own to be built, or many containers.
_LONG = {"test_builder", "test_compose", "test_corpus", "test_doctor", "test_sidecar", "test_sidecar_way"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(ALL) == "all":
        return
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    left_out = {item for item in ours if item.path.stem in _LONG} | _with_another_way(ours)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _with_another_way(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of a test that runs over several ways only one is left: with root's Docker, if that is one of them."""
    by_test: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        way = next((way.name for way in _LONGEST_FIRST if way.name in item.name), "")
        if way:
            by_test.setdefault(item.nodeid.partition("[")[0], {}).setdefault(way, []).append(item)
    left_out: set[pytest.Item] = set()
    for ways in by_test.values():
        kept = DOCKER_ROOT.name if DOCKER_ROOT.name in ways else next(iter(ways))
        left_out.update(item for way, found in ways.items() if way != kept for item in found)
    return left_out
