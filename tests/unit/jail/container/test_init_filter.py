"""Process 1 of containers has the system call filter of every jail in it, as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

import exeat.jail.container
from exeat.jail.limits.seccomp import NUMBERS, build_filter


@pytest.mark.parametrize("machine", NUMBERS)
def test_it_was_built_with_the_filter(machine: str) -> None:
    """If not: scripts/build-init."""
    program = Path(exeat.jail.container.__file__).parent / f"init-{machine}"
    assert build_filter(machine) in program.read_bytes()
