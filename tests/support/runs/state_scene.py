"""A home with state of exeat's in it, and a program that wants it: what it can do outside, and what in a jail."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.runs.running import TIMEOUT_S, as_user, environment, exeat, folder_of, python

KEPT = "kept.test\n"
BELOW_HOME = ".local/state/exeat"
# As text: another user may not be able to read the file.
_ATTACK = Path(__file__).with_name("state_attack.py").read_text()


def under_mounts(mounts: str) -> list[str]:
    """To be put before a command: it sees these mounts, made as a shell says it, and no one else does."""
    return ["unshare", "-m", "sh", "-ec", f'{mounts}\nexec "$@"', "sh"] if mounts else []


@dataclass(frozen=True)
class Scene:
    """State of a user's with a sandbox `kept`, where a command seems to run, and a home."""

    folder: Path
    state: Path
    uid: int | None
    mounts: str = ""  # for the time of a run
    aliases: dict[str, Path] = field(default_factory=dict)  # paths that the mounts give to the list
    missing: dict[str, Path] = field(default_factory=dict)  # where state could be and is not

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def sandbox(self) -> Path:
        return self.state / "sandboxes" / "kept"

    def environment(self, **more: str) -> dict[str, str]:
        return environment(HOME=str(self.home), **more) | {"XDG_STATE_HOME": ""}

    def escapes_outside(self) -> bool:
        """Can the program do everything if there is no jail? What it leaves is removed."""
        with (self.sandbox / "allowlist.txt").open("r+") as inherited:
            done = subprocess.run(
                [*under_mounts(self.mounts), *as_user(self.uid), *self._attack()],
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=self.home,
                env=self.environment(), pass_fds=[inherited.fileno()],
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for planted in (self.state / "sandboxes" / "planted", *(path / "sandboxes" for path in self.missing.values())):
            shutil.rmtree(planted)
        for path in self.missing.values():
            path.rmdir()
        said = json.loads(done.stdout)
        assert {name: how for name, how in said.items() if how != "done"} == {}
        return True

    def escapes_inside(self, *options: str, is_shared: bool = True, **more: str) -> list[str]:
        """What it can do in a jail, with all folders of the scene shared for real. The state is to stay what it was."""
        before = _content(self.state)
        with (self.sandbox / "allowlist.txt").open("r+") as inherited:
            done = exeat(
                *options, *(["--write", str(self.folder)] if is_shared else []), command=self._attack(),
                uid=self.uid, before=under_mounts(self.mounts), cwd=self.home, env=self.environment(**more),
                pass_fds=[inherited.fileno()],
            )  # fmt: skip
        assert done.status == 0, done.stderr
        assert _content(self.state) == before
        return [name for name, how in json.loads(done.stdout).items() if how == "done"]

    def _attack(self) -> list[str]:
        found = (self.sandbox / "allowlist.txt").stat()
        given = {
            "state": str(self.state),
            "cwd": str(self.home),
            "below": str(self.folder),
            "list": [found.st_dev, found.st_ino],
            "aliases": {name: str(path) for name, path in self.aliases.items()},
            "on the way": [str(path) for path in self.state.parents if self.folder in path.parents],
            "missing": {name: str(path) for name, path in self.missing.items()},
        }
        return python(_ATTACK, json.dumps(given))


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


@contextmanager
def scene(uid: int | None, state: str) -> Iterator[Scene]:
    """A scene with its state at this path below its folder."""
    with folder_of(uid) as folder, socket.socket(socket.AF_UNIX) as control:
        made = Scene(folder, folder / state, uid)
        made.sandbox.mkdir(parents=True)
        for each in (made.state, made.sandbox.parent, made.sandbox):
            each.chmod(0o700)
        for name in ("allowlist.txt", "audit.jsonl"):
            (made.sandbox / name).write_text(KEPT)
            (made.sandbox / name).chmod(0o600)
        control.bind(str(made.sandbox / "control.sock"))
        control.listen(8)
        for name in ("home/.cache", "home/.local/share", "alias"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if uid is not None:
            for path in folder.rglob("*"):
                os.lchown(path, uid, uid)
        yield made
