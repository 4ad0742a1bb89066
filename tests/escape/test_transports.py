"""Transports that packet rules forget: SCTP, DCCP, UDP-Lite, MPTCP, SMC (E1, E6)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("transports")
def test_transports(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """What is neither TCP nor DNS does not leave; what becomes TCP ends at the gateway."""
    check(stage, probe, jail, caller)
