"""Ctrl-C before the command runs: nothing is said, nothing is left, and the status is the one that shells expect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import Finished
from tests.support.runs.running import environment, exeat

_SCRIPT = str(Path(__file__).parents[1] / "support" / "runs" / "interrupted.py")
_NEVER = "never"
# The first are in the first lines of exeat. The last is the fork of the jail's builder, when signals are held back.
_MOMENTS = (
    "enum",
    "exeat.cli.main",
    "argparse",
    "exeat.cli.options",
    "exeat.run.main",
    "exeat.run.gateway_process.process",
    "fork 1",
    "exeat.run.lifecycle",
    "exeat.jail.bodies.namespaces",
    "exeat.run.asks.terminal",
    "fork 2",
)


def interrupted(moment: str, *arguments: str, home: Path) -> Finished:
    return exeat(argv=[sys.executable, _SCRIPT, moment, *arguments], env=environment(EXEAT_HOME=str(home)))


@pytest.mark.parametrize("jail", ["netns", "env"])
def test_the_control_is_not_interrupted(jail: str, tmp_path: Path) -> None:
    done = interrupted(_NEVER, "run", "--jail", jail, "--", "echo", "ran", home=tmp_path / "home")
    assert (done.status, done.stdout) == (0, "ran\n")


@pytest.mark.parametrize("moment", _MOMENTS)
def test_ctrl_c_while_a_run_starts(moment: str, tmp_path: Path) -> None:
    done = interrupted(moment, "run", "--", "echo", "ran", home=tmp_path / "home")
    assert done == Finished(130, "", "")


@pytest.mark.parametrize("moment", ["argparse", "exeat.run.lifecycle", "fork 2"])
def test_ctrl_c_is_ignored_if_the_caller_wants_that(moment: str, tmp_path: Path) -> None:
    """As `nohup` and the background jobs of scripts have it."""
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    argv = [*ignoring, sys.executable, _SCRIPT, moment, "run", "--", "echo", "ran"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=40, check=False, env=environment(EXEAT_HOME=str(tmp_path / "h"))
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
