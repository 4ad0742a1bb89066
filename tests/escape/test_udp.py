"""UDP, and QUIC with it, does not leave (E1, C7)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("udp")
def test_udp(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """No datagram arrives outside."""
    check(stage, probe, jail, caller)
