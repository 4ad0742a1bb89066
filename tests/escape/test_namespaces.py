"""Undoing the jail: namespaces, capabilities, mounts, packet rules (E2)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("namespaces")
def test_namespaces(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """The command has no capability, gets none, and cannot change what holds it."""
    check(stage, probe, jail, caller)
