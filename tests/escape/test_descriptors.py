"""Descriptors that the caller left open (E3)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("descriptors")
def test_descriptors(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """A flow that is older than the jail does not survive into it."""
    check(stage, probe, jail, caller)
