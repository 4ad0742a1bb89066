"""`exeat run --container` with an engine of the tests: as who has it, in a folder of theirs."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.clients.terminal import Terminal
from tests.support.engines.base import Base
from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished
from tests.support.runs.running import Running, environment, exeat, folder_of, run_argv

# In the image, which has no other.
PYTHON = "/usr/bin/python3"


def python(program: str, *arguments: str) -> list[str]:
    """A command that runs this program with the image's Python."""
    return [PYTHON, "-I", "-c", program, *arguments]


@dataclass(frozen=True, slots=True)
class Log:
    """How a run ended, and what its log says."""

    done: Finished
    lines: Sequence[Mapping[str, Any]]

    @property
    def verdicts(self) -> set[tuple[str, str, int, str]]:
        return {
            (line["verdict"], line["host"], line["port"], line["reason"])
            for line in self.lines
            if line["event"] == "decision"
        }


class Boxed:
    """Runs commands in containers. `work` is where they run, and in the container too."""

    def __init__(self, base: Base, folder: Path) -> None:
        self.base = base
        self.folder, self.work, self.home = folder, folder / "work", folder / "home"
        for each in (self.work, self.home, folder / "tmp"):
            each.mkdir()
        base.give(self.work, self.home, folder / "tmp")
        self._numbers = itertools.count(1)

    def environment(self, **added: str) -> dict[str, str]:
        own = {"HOME": str(self.home), "TMPDIR": str(self.folder / "tmp"), "XDG_STATE_HOME": str(self.home / "state")}
        return environment(**own, **self.base.variables, **added)

    def run(self, *options: str, command: Sequence[str], given: str | None = None, **variables: str) -> Finished:
        """To its end."""
        return exeat(
            *self._options(options),
            command=command,
            given=given,
            before=self.base.before,
            env=self.environment(**variables),
            cwd=self.work,
        )

    def logged(self, *options: str, command: Sequence[str], **variables: str) -> Log:
        """To its end, with a log."""
        log = self.home / f"audit-{next(self._numbers)}.jsonl"
        done = self.run("--audit", str(log), *options, command=command, **variables)
        assert log.exists(), done
        return Log(done, [json.loads(line) for line in log.read_text().splitlines()])

    def running(self, *options: str, command: Sequence[str], **popen: Any) -> Running:
        settings: dict[str, Any] = {"env": self.environment(), "cwd": self.work} | popen
        return Running(self.folder, *self._options(options), command=command, before=self.base.before, **settings)

    def on(self, terminal: Terminal, *options: str, command: Sequence[str]) -> int:
        """As a job on a terminal that was opened with `environment`; returns its number."""
        return terminal.start([*self.base.before, *run_argv(self._options(options), command)])

    def _options(self, options: Sequence[str]) -> list[str]:
        return ["--container", self.base.image, *options]

    def containers_of(self, pid: int, kind: str = "") -> list[dict[str, Any]]:
        """Those that belong to this process of exeat: the run's, a helper's."""
        found = self.base.containers(f"exeat.kind={kind}" if kind else "exeat.owner")
        return [each for each in found if f".{pid}." in each["Labels"]["exeat.owner"]]

    def wait_gone(self, pid: int) -> None:
        wait_until(lambda: not self.containers_of(pid), f"the containers of process {pid} to be removed")

    @contextmanager
    def somebodys(self, labels: Mapping[str, str]) -> Iterator[str]:
        """A container that exeat has not made: its id. It exists and does not run."""
        body = {"Image": self.base.image, "Cmd": ["true"], "Labels": dict(labels)}
        name = f"somebodys-{secrets.token_hex(4)}"
        box = str(self.base.ask("POST", f"/containers/create?name={name}", body)["Id"])
        try:
            yield box
        finally:
            if self.is_there(box):
                self.base.ask("DELETE", f"/containers/{box}?force=1")

    def is_there(self, box: str) -> bool:
        return any(each["Id"] == box for each in self.base.ask("GET", "/containers/json?all=1"))


@contextmanager
def boxed(base: Base) -> Iterator[Boxed]:
    with folder_of(base.uid) as folder:
        yield Boxed(base, folder)


def world_of_labels() -> str:
    """What labels of this machine begin with: its boot, and the PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
