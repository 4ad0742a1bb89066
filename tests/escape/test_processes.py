"""Processes outside: environment, memory, descriptors, keys, signals (E7)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("processes")
def test_processes(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """The command sees no process but its own."""
    check(stage, probe, jail, caller)
