"""Packets made by hand (E1, E2)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("raw")
def test_raw(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """No ICMP, no raw packet, no frame, no tunnel device."""
    check(stage, probe, jail, caller)
