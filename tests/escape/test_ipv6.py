"""IPv6 is no way round (E1)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("ipv6")
def test_ipv6(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """Rules that hold for IPv4 hold for IPv6."""
    check(stage, probe, jail, caller)
