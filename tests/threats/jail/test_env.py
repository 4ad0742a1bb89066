"""The env jail is no boundary, and its scorecard says so. This is also the control of the corpus as a whole."""

from __future__ import annotations

import pytest

from exeat.attack.model import Probe
from exeat.attack.probes import GROUPS
from tests.support.jails.stage import Stage

GROUPS_IN_THE_OPEN = ("tcp", "ipv6", "udp", "unix", "outlive")
# All but one that needs the jail's resolver to get as far as being stopped.
OPEN = [probe for name in GROUPS_IN_THE_OPEN for probe in GROUPS[name].probes if probe.id != "A9.tcp-port"]


@pytest.mark.parametrize("caller", ["root", "user"])
@pytest.mark.parametrize("probe", OPEN, ids=lambda probe: probe.id)
def test_what_it_does_not_stop_is_shown_as_an_escape(stage: Stage, probe: Probe, caller: str) -> None:
    """Whatever gets out without a jail gets out of this one, is seen, and was not promised otherwise."""
    row = stage.row(probe.id, "env", caller)
    assert row["expected"] == "gets out"
    if row["lack"]:
        pytest.skip(f"no control: {row['control']}")
    assert row["seen"] == "ESCAPED", row["said"]


@pytest.mark.parametrize("caller", ["root", "user"])
def test_an_escape_is_the_exit_status(stage: Stage, caller: str) -> None:
    """No one takes it for a boundary because a command succeeded."""
    done = stage.run(stage.caller(caller), *stage.exeat("doctor", "--attack", "--jail", "env", "--class", "udp"))
    assert done.returncode == 1, done.stderr
    assert "this jail does not claim to stop it" in done.stdout
    assert f"env as {'root' if caller == 'root' else 'user '}" in done.stdout.splitlines()[-1]
