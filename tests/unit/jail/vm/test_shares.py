"""How many files a guest may remember, so that whoever serves them has descriptors for all that it uses."""

from __future__ import annotations

import resource

import pytest

from exeat.jail.vm.shares import Served


@pytest.mark.parametrize(
    ("limit", "known"),
    [(1_048_576, 524_288), (20_000, 10_000), (4_096, 2_048), (3_072, 1_024), (2_048, 512), (256, 64)],
)
def test_few_descriptors_leave_as_many_as_a_busy_machine_needs(
    limit: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit // 2, limit))
    assert Served(virtiofsd="/usr/libexec/virtiofsd").most_known_files() == known


def test_without_a_server_it_does_not_matter() -> None:
    assert Served().most_known_files() == 0
    assert Served(trees=(), virtiofsd="/usr/libexec/virtiofsd").most_known_files() == 0
