"""A repository of a user's, and commands in and out of the jail in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.programs import Finished
from tests.support.runs.running import as_user, environment, exeat


class Project:
    """A repository of a user's, with settings of an editor."""

    def __init__(self, folder: Path, uid: int | None) -> None:
        self.folder = folder / "project"
        self.uid = uid
        self.folder.mkdir()
        self.own()
        self.git("init", "-q", "-b", "main", outside=True)
        (self.folder / ".vscode").mkdir()
        (self.folder / ".vscode/tasks.json").write_text("{}")
        (self.folder / ".mcp.json").write_text("{}")
        (self.folder / "file").write_text("1\n")
        self.own()

    def own(self) -> None:
        if self.uid is not None:
            subprocess.run(["chown", "-hR", f"{self.uid}:{self.uid}", str(self.folder.parent)], check=True)

    def run(self, command: list[str], *options: str) -> Finished:
        return exeat(*options, command=command, uid=self.uid, cwd=self.folder, env=self.environ)

    @property
    def environ(self) -> dict[str, str]:
        return environment(HOME=str(self.folder.parent), **GIT)

    def git(self, *arguments: str, outside: bool = False, check: bool = True) -> str:
        command = ["git", *arguments]
        if not outside:
            done = self.run(command)
            assert done.status == 0 or not check, done.stderr
            return done.stdout
        argv = [*(as_user(self.uid) if self.uid is not None else []), *command]
        result = subprocess.run(argv, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=check)
        return result.stdout


GIT = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
}  # fmt: skip
