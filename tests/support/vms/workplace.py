"""A home with a project in it, and `exeat run --vm` there: of root, or of someone without rights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.clients.terminal import Terminal
from tests.support.fixtures.vms import Guest
from tests.support.jails.stage import Stage
from tests.support.programs import Finished
from tests.support.runs.running import Process, Running, descendants_of, environment, exeat, run_argv

# What every user can enter: a folder that may not be searched is no missing program.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Workplace:
    """Whose it is. Others than the tests' own user have a copy of exeat, which cannot look into TLS."""

    stage: Stage
    guest: Guest
    uid: int
    home: Path

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def temporary(self) -> Path:
        return self.home / "temporary"

    @property
    def environ(self) -> dict[str, str]:
        own = {"HOME": self.home, "EXEAT_HOME": self.home / "state", "TMPDIR": self.temporary}
        found = environment(**{name: str(path) for name, path in own.items()}, PATH=_PATH)
        if not self.is_ours:
            found["PYTHONPATH"] = f"{os.environ['PYTHONPATH']}:{self.stage.installation.folder}"
            found["PYTHONDONTWRITEBYTECODE"] = "1"
        return found

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def argv(self, *options: str, command: Sequence[str]) -> list[str]:
        whole = [*self.guest.options, *options]
        if self.is_ours:
            return run_argv(whole, command)
        groups = f"{self.uid},100"  # as whoever has logged in has some
        become = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--groups", groups]
        return [*become, *self.stage.exeat("run", *whole, "--", *command)]

    def run(self, *options: str, command: Sequence[str], **popen: Any) -> Finished:
        settings: dict[str, Any] = {"env": self.environ, "cwd": self.project} | popen
        return exeat(argv=self.argv(*options, command=command), **settings)

    def running(self, *options: str, command: Sequence[str], **popen: Any) -> Running:
        settings: dict[str, Any] = {"env": self.environ, "cwd": self.project} | popen
        return Running(self.home, command=command, argv=self.argv(*options, command=command), **settings)

    def on(self, terminal: Terminal, *options: str, command: Sequence[str]) -> int:
        """As a job on a terminal that was opened with `environ`."""
        return terminal.start(self.argv(*options, command=command))

    def give(self, path: Path) -> Path:
        """To whose place it is."""
        os.chown(path, self.uid, self.uid)
        return path

    def write(self, name: str, text: str) -> Path:
        """A file in the home."""
        path = self.home / name
        for folder in reversed(path.relative_to(self.home).parents):
            (self.home / folder).mkdir(exist_ok=True)
            self.give(self.home / folder)
        path.write_text(text)
        return self.give(path)


@contextmanager
def workplace(stage: Stage, guest: Guest, caller: str) -> Iterator[Workplace]:
    """Of a caller as `Stage.caller` names them: "root" or "user"."""
    uid = stage.caller(caller).uid
    with tempfile.TemporaryDirectory(prefix="exeat-vm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        place = Workplace(stage, guest, uid, folder / "home")
        place.project.mkdir(parents=True)
        place.temporary.mkdir()
        for path in (place.home, place.project, place.temporary):
            place.give(path)
        yield place


def processes_of(running: Running) -> list[Process]:
    """All that a run has started so far."""
    found = []
    for pid in descendants_of(running.process.pid):
        try:
            found.append(Process(pid))
        except OSError:
            continue  # it has just ended
    return found


def has_started(running: Running, program: str) -> bool:
    for pid in descendants_of(running.process.pid):
        try:
            if program in Path(f"/proc/{pid}/comm").read_text():
                return True
        except OSError:
            continue
    return False
