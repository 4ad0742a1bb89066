"""TCP by IPv4: any port and any way of connecting ends at the gateway (E1, E8)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("tcp")
def test_tcp(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """What is not allowed does not arrive, whether or not the program knows of proxies."""
    check(stage, probe, jail, caller)
