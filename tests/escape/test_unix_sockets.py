"""Unix sockets of the host, by path and abstract (C3, E6)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("unix")
def test_unix_sockets(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """No program of the host can be reached by its socket, whatever its name is or was."""
    check(stage, probe, jail, caller)
