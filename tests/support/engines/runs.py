"""`exeat run --container` in a project, by each way in which people have an engine."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.engines.base import Base
from tests.support.programs import Finished
from tests.support.runs.running import environment, exeat


@dataclass(frozen=True, slots=True)
class Work:
    """A home with a project in it, both of who has the engine."""

    engine: Base
    home: Path

    @property
    def project(self) -> Path:
        return self.home / "work" / "project"

    @property
    def environ(self) -> dict[str, str]:
        return environment(HOME=str(self.home), EXEAT_HOME=str(self.home / "state"), **self.engine.variables)

    def options(self, *more: str) -> list[str]:
        return ["--container", self.engine.image, "--engine", self.engine.kind, *more]

    def inside(self, *command: str, options: Sequence[str] = (), given: str | None = None) -> Finished:
        return exeat(
            *self.options(*options),
            command=command,
            before=self.engine.before,
            env=self.environ,
            cwd=self.project,
            given=given,
        )

    def outside(self, *command: str) -> Finished:
        done = subprocess.run(
            [*self.engine.before, *command],
            cwd=self.project,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def write(self, name: str, text: str = "") -> Path:
        """A file in the home."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@contextmanager
def at_work(engine: Base) -> Iterator[Work]:
    with tempfile.TemporaryDirectory(prefix="exeat-work-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        work = Work(engine, folder / "home")
        work.project.mkdir(parents=True)
        engine.give(work.home)
        yield work
