"""Runs leave nothing behind, however they end. `soak.py` does the same a thousand times."""

from __future__ import annotations

import os

import pytest

from tests.support.jails.soak import difference
from tests.support.jails.stage import JAILS_AND_CALLERS, Stage

pytestmark = pytest.mark.threat("T-E9")

RUNS = 12


@pytest.mark.parametrize(("jail", "caller"), JAILS_AND_CALLERS)
def test_runs_in_a_row_leave_nothing_behind(stage: Stage, jail: str, caller: str) -> None:
    """Good ends, bad ends and SIGKILL: no process, namespace, mount, file, descriptor, socket or rule is left."""
    if os.geteuid() != 0:
        pytest.skip("pytest does not run as root, and only root can make a world in which no one else leaves things")
    done = stage.script(stage.caller(caller), "soak.py", "--here", "--runs", str(RUNS), "--jail", jail)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "{}"


def test_the_census_sees_what_is_left() -> None:
    """Control: a list that is longer afterwards is a difference, one that is shorter is none."""
    assert difference({"mounts": ["a"], "files": ["x"]}, {"mounts": ["a", "b"], "files": []}) == {"mounts": ["b"]}


@pytest.mark.parametrize("caller", ["root", "user"])
def test_a_process_that_is_left_is_found(stage: Stage, caller: str) -> None:
    """Control: in the env jail, which ends nothing, the background process of the bad end outlives its run."""
    if os.geteuid() != 0:
        pytest.skip("pytest does not run as root, and only root can make a world in which no one else leaves things")
    done = stage.script(stage.caller(caller), "soak.py", "--here", "--runs", "8", "--jail", "env")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "sleep" in done.stdout
