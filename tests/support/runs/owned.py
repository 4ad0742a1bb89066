"""Someone's files: a home with a key and a start file, a project in it, and commands in and out of the jail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import Finished
from tests.support.runs.running import TIMEOUT_S, as_user, environment, exeat, folder_of
from tests.support.runs.state_scene import under_mounts

KEY = "a key that no one may read"
START = "# the user's own\n"


@dataclass(frozen=True)
class Owned:
    """What a user has, and how they start things there."""

    home: Path
    project: Path
    uid: int | None
    mounts: str = ""  # as a shell makes them, for the time of a run

    @property
    def key(self) -> Path:
        return self.home / ".ssh" / "id_ed25519"

    @property
    def start(self) -> Path:
        return self.home / ".bashrc"

    def inside(self, *command: str, options: Sequence[str] = ()) -> Finished:
        """In the jail."""
        return exeat(
            *options,
            command=command,
            uid=self.uid,
            before=under_mounts(self.mounts),
            cwd=self.project,
            env=self._environment(),
        )

    def outside(self, *command: str) -> Finished:
        """The control: the same without a jail."""
        argv = [*under_mounts(self.mounts), *as_user(self.uid), *command]
        return exeat(argv=argv, cwd=self.project, env=self._environment())

    def give(self, *paths: Path) -> None:
        """To the user, if that is not who runs the tests."""
        for path in paths:
            if self.uid is not None:
                os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def _environment(self) -> dict[str, str]:
        return environment(HOME=str(self.home)) | {"XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}


@contextmanager
def owned(uid: int | None) -> Iterator[Owned]:
    with folder_of(uid) as folder:
        home = folder / "home"
        found = Owned(home, home / "project", uid)
        for each in (home, found.project, found.key.parent):
            each.mkdir()
        found.key.write_text(f"{KEY}\n")
        found.start.write_text(START)
        found.give(home, found.project, found.key.parent, found.key, found.start)
        yield found


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)
