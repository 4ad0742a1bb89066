"""Which of the tests with real guests run: all of them with `make test-vms`, and in CI.

Otherwise those that do not take long, with the kernel that boots fastest.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALL = "EXEAT_TEST_VMS"
_UNIT = Path(__file__).parents[1] / "unit"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _UNIT in item.path.parents)  # short ones last: then all workers end at the same time
    if os.environ.get(ALL) == "all":
        return
    left_out = {item for item in items if "guest_9p" in getattr(item, "fixturenames", ()) or _is_long(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("every_vm") is not None
