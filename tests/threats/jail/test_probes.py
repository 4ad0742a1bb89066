"""Every probe of the corpus (exeat.attack.probes) against every jail that claims to stop it, for every caller.

Each gets out without a jail, which is its control, and does not get out of one. What a jail must not break, the class
"inside", is held the same way: it must work, or no other test here means anything.
"""

from __future__ import annotations

from exeat.attack.model import Probe
from tests.support.jails.stage import Stage, cases, check


@cases()
def test_probe(stage: Stage, probe: Probe, jail: str, caller: str) -> None:
    """A new probe in src/exeat/attack/probes needs nothing here."""
    check(stage, probe, jail, caller)
