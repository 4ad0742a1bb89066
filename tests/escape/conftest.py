"""What all escape tests share: the stage, set once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.escape import Stage, open_stage


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """exeat installed for everybody."""
    with open_stage() as opened:
        yield opened
