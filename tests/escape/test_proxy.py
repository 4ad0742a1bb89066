"""The gateway, asked by every door for what it must refuse (A2, A3, A9, D1, D5, E5)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("proxy")
def test_proxy(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """The gateway of a run refuses what any gateway refuses."""
    check(stage, probe, jail, caller)
