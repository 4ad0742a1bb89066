"""A machine of one folder, and a sandbox in which runs leave layers over it: as the caller and as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Finished
from tests.support.runs.layer_run import layer_run
from tests.support.runs.running import NOBODY, as_user, environment, exeat, folder_of

_SOURCE = Path(__file__).parents[3] / "src"


class Machine:
    """`real` is what is outside. `run` is a run in the sandbox `box`, in which `real` lies under an overlay."""

    def __init__(self, base: Path, uid: int | None) -> None:
        self.uid = uid
        self.base = base
        self.real = base / "real"
        self.state = base / "state"
        self.layers = self.state / "sandboxes/box/layers"
        self.do(f"mkdir -m 755 {self.real}")

    def run(self, script: str, **given: Any) -> dict[str, Any]:
        return layer_run(str(self.real), script, str(self.state), self.uid, **given)

    def do(self, script: str) -> str:
        """Outside, as the same user, in `real` if that is there."""
        return self.start(["sh", "-ec", script])

    def start(self, argv: list[str]) -> str:
        where = self.real if self.real.is_dir() else self.base
        argv = [*as_user(self.uid), *argv]
        return subprocess.run(
            argv, cwd=where, env=environment(EXEAT_HOME=str(self.state)), check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def files(self, *words: str) -> Finished:
        """`exeat files ...` outside, in `real`."""
        argv = [*as_user(self.uid), sys.executable, "-m", "exeat", "files", *words, "--name", "box"]
        return exeat(argv=argv, cwd=self.real, env=environment(EXEAT_HOME=str(self.state)))

    def kept(self) -> list[str]:
        return sorted(each.name for each in self.layers.iterdir())

    def python(self, program: str) -> str:
        """A program outside, as the same user, that may import exeat."""
        file = self.base / "program.py"
        file.write_text(f"import os, sys; sys.path.insert(0, {str(_SOURCE)!r})\n{program}")
        return self.start([sys.executable, str(file)])

    def tree(self, number: int) -> Path:
        return self.layers / f"{number:06d}/tree{self.real}"

    def seen(self) -> str:
        """What a run finds in the folder, read only."""
        listing = f"{self.base}/seen"
        done = self.run(f"find . -mindepth 1 -printf '%P %y %m %s\\n' | sort > {listing}; chmod 644 {listing}")
        assert done["status"] == 0
        return (self.base / "seen").read_text()


@pytest.fixture(params=["caller", "nobody"] if os.geteuid() == 0 else ["caller"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    uid = NOBODY if request.param == "nobody" else None
    with folder_of(uid) as base:
        yield Machine(base, uid)
