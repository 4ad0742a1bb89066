"""Fixtures for real programs in a jail: a folder that other users can enter, and certificates in such a one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.conftest import Authority, make_authority
from tests.clients.jail.scene import USERS, Jail
from tests.support.runs.running import folder_of


@pytest.fixture(scope="session")
def authority() -> Iterator[Authority]:
    """As everywhere, where other users can read it; but for the key, which is the servers' business."""
    with folder_of(None) as folder:
        made = make_authority(folder)
        made.key.chmod(0o600)
        yield made


@pytest.fixture
def jail(authority: Authority) -> Iterator[Jail]:
    """A jail of whoever runs the tests."""
    with folder_of(None) as folder:
        yield Jail(folder, None, authority.ca)


@pytest.fixture(params=list(USERS.values()), ids=list(USERS))
def any_jail(authority: Authority, request: pytest.FixtureRequest) -> Iterator[Jail]:
    """A jail of whoever runs the tests, and one of somebody without rights."""
    with folder_of(request.param) as folder:
        yield Jail(folder, request.param, authority.ca)
