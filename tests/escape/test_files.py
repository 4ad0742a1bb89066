"""Files outside of the project, keys, layers, and programs outside by what they have in folders (M1, M2, M3, L8)."""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.escape import Stage, cases, check


@cases("files")
def test_files(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """Nothing outside changes, no key is read, and no program outside is spoken to."""
    check(stage, probe, jail, caller)
