"""Whatever process of a run fails, at whatever step, and whoever hears of it first: a sentence and a status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import Finished
from tests.support.runs.faults import BUILDER, GATEWAY, INIT
from tests.support.runs.running import ANYWHERE, environment, exeat, folder_of

pytestmark = pytest.mark.threat("T-E11")

MARK = "the command has started"
# Who speaks first is a question only where the other one does not wait for it. Init is process 1 of its
# namespace, so it cannot kill itself.
_CASES = [
    *((step, how, "any") for step in BUILDER for how in ("oserror", "kill")),
    *((step, how, "any") for step in INIT if step != "init-goes" for how in ("oserror", "exit")),
    *(("init-waits", how, "it") for how in ("oserror", "exit")),
    *((step, how, "any") for step in GATEWAY for how in ("oserror", "kill")),
    *(("gateway-waits", how, order) for how in ("oserror", "kill") for order in ("it", "run")),
    ("builder-network", "error", "any"),
    ("gateway-waits", "error", "run"),
]


@pytest.fixture
def home() -> Iterator[Path]:
    with folder_of(None) as folder:
        yield folder


def run_with_fault(home: Path, step: str, how: str, order: str, *options: str) -> Finished:
    argv = [
        sys.executable,
        "-m",
        "tests.support.runs.faults",
        step,
        how,
        order,
        "run",
        "--intercept",
        "all",
        *options,
        "--",
        "echo",
        MARK,
    ]
    return exeat(argv=argv, env=environment(EXEAT_HOME=f"{home}/state"), cwd=str(Path(__file__).parents[2]))


def test_the_control_runs(home: Path) -> None:
    """The same launcher at every step, without a fault."""
    steps = ",".join([*BUILDER, *INIT, *GATEWAY])
    assert run_with_fault(home, steps, "none", "any") == Finished(0, f"{MARK}\n", "")


@pytest.mark.parametrize(("step", "how", "order"), _CASES)
def test_an_early_fault_is_one_sentence(step: str, how: str, order: str, home: Path) -> None:
    done = run_with_fault(home, step, how, order)
    assert done.status in (1, 2), done
    assert done.stdout == ""
    assert done.stderr.startswith("exeat: "), done.stderr
    assert done.stderr.count("exeat: ") == 1


@pytest.mark.parametrize(
    ("step", "how", "order"),
    [("init-goes", "oserror", "any"), ("init-goes", "exit", "any"), ("init-waits", "exit", "run")],
)
def test_an_init_that_fails_when_it_has_been_told_to_go(step: str, how: str, order: str, home: Path) -> None:
    """The command may have run for all that can be told."""
    done = run_with_fault(home, step, how, order)
    assert done.status in (2, 137), done
    assert done.stdout == ""
    assert done.stderr.startswith("exeat: "), done.stderr


def test_a_run_inside_a_run_says_that_it_is_one(home: Path) -> None:
    inner = [sys.executable, "-m", "exeat", "run", "--", "echo", MARK]
    env = environment(EXEAT_HOME=f"{home}/state", HOME=str(home))
    assert exeat(command=["echo", MARK], env=env, cwd=ANYWHERE).stdout == f"{MARK}\n"  # the control
    done = exeat(command=inner, env=env, cwd=ANYWHERE)
    assert done.status == 2
    assert done.stdout == ""
    assert done.stderr.startswith("exeat: already inside an exeat jail"), done.stderr
    assert "nft" not in done.stderr
