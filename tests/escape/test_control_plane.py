"""The gateway itself as a target (E4, E5)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("control-plane")
def test_control_plane(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """No administration port, no loop through the gateway's own ports."""
    check(stage, probe, jail, caller)
