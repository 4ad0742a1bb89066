"""Whatever dies, nothing gets out."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.jails.stage import JAILS_AND_CALLERS, Stage

pytestmark = pytest.mark.threat("T-E7", "T-E9")

PROCESSES = 4  # exeat, its gateway, the jail's first process, the command


def _kill(stage: Stage, jail: str, caller: str, number: int) -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("pytest does not run as root, and only root can make a world where all processes are known")
    done = stage.script(stage.caller(caller), "killing.py", jail, str(number))
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("caller", ["root", "user"])
def test_without_a_jail_the_command_reaches_everything(stage: Stage, caller: str) -> None:
    """Control: what must not arrive below does arrive here."""
    said = _kill(stage, "none", caller, -1)
    assert said["ready"]
    assert said["before"] > 0


@pytest.mark.parametrize("number", range(PROCESSES))
@pytest.mark.parametrize(("jail", "caller"), JAILS_AND_CALLERS)
def test_killing_any_process_ends_the_run_and_opens_nothing(stage: Stage, jail: str, caller: str, number: int) -> None:
    """exeat, its gateway, the jail's first process, the command: each is killed once."""
    said = _kill(stage, jail, caller, number)
    assert said["ready"], "the allowed host was never reached, so this proves nothing"
    assert said["processes"] == PROCESSES, "a process more or less than is killed here"
    assert said["before"] == 0
    assert said["after"] == 0
    assert said["left"] == []
