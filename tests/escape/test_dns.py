"""Names as a way out, and resolvers of the program's own choice (D1, D3, D4)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("dns")
def test_dns(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """No query reaches a name server outside before its name is allowed."""
    check(stage, probe, jail, caller)
