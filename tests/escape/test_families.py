"""Socket families and kernel interfaces that packet rules do not cover (E6)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("families")
def test_families(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """vsock, io_uring, rare families and rare netlink protocols are closed."""
    check(stage, probe, jail, caller)
