"""Processes that try to outlive the run (C5)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("outlive")
def test_outlive(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """When the run is over nothing of it lives or sends."""
    check(stage, probe, jail, caller)
