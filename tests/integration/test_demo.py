"""What `make demo` shows is true: the service gets the key, the agent never has it, and nothing else gets out."""

from __future__ import annotations

import sys
from pathlib import Path

from examples import demo

from tests.support.runs.running import exeat

ROOT = Path(demo.__file__).parents[1]


def test_the_demo_goes_as_it_says() -> None:
    done = exeat(argv=[sys.executable, "-m", "examples.demo"], cwd=ROOT)
    assert (done.status, done.stderr) == (0, "")
    assert "The service saw  Bearer sk-live-...6035  " in done.stdout
    assert "The agent saw    Bearer sk-" in done.stdout
    assert "403 exeat: API_KEY must not be sent to api.good.test:" in done.stdout
    assert demo.KEY not in done.stdout
