"""What a jail must not break: the allowed host by every door, and talk between processes inside (C1, C3)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("inside")
def test_inside(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """A jail that breaks everything stops everything. These must work, or no other test here means anything."""
    check(stage, probe, jail, caller)
