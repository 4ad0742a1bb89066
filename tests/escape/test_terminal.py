"""The caller's terminal (C3)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("terminal")
def test_terminal(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """Nothing is typed into the terminal for the shell to run afterwards."""
    check(stage, probe, jail, caller)
