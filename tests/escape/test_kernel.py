"""The kernel's knobs, of which some run programs outside (C3, E2)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("kernel")
def test_kernel(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """A caller who is root does not lend that to the command."""
    check(stage, probe, jail, caller)
