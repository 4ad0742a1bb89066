"""Addresses that mean something else than they seem to (A3, D5)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("addresses")
def test_addresses(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """Zero addresses, all of loopback, metadata, broadcast and multicast lead nowhere."""
    check(stage, probe, jail, caller)
