"""git over HTTP and HTTPS through the gateway, told by its environment, with git's own server behind it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.scene import Scene
from tests.support.fixtures.programs import SetScene
from tests.support.origins.git import FIRST_FILE, git, git_backend, git_environment, make_repository
from tests.support.programs import need

WAYS = pytest.mark.parametrize("scheme", ["http", "https"])


@dataclass(frozen=True, slots=True)
class Depot:
    """A bare repository behind a web server, holding one commit, and the environment to use it in."""

    scene: Scene
    env: dict[str, str]
    repository: Path

    @property
    def good(self) -> str:
        return f"{self.scene.good}/{self.repository.name}"

    @property
    def evil(self) -> str:
        return f"{self.scene.evil}/{self.repository.name}"

    @property
    def by(self) -> str:
        return "http" if self.scene.scheme == "http" else "connect"

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run git where no network is involved."""
        return git(self.env, *arguments, cwd=cwd)


@pytest.fixture
def open_depot(set_scene: SetScene, tmp_path: Path, env: dict[str, str]) -> OpenDepot:
    need("git")
    return OpenDepot(set_scene, tmp_path, env)


@dataclass(frozen=True, slots=True)
class OpenDepot:
    """Makes a depot that is served by a scheme."""

    set_scene: SetScene
    folder: Path
    env: dict[str, str]

    def __call__(self, scheme: str) -> Depot:
        root = self.folder / "served"
        repository = root / "depot.git"
        local = git_environment(self.env)
        scene = self.set_scene(scheme, git_backend(root, local))
        depot = Depot(scene, {**local, **scene.proxy_env, "GIT_SSL_CAINFO": str(scene.ca)}, repository)
        make_repository(repository, depot.env, self.folder / "first")
        return depot


@WAYS
def test_clone(open_depot: OpenDepot, tmp_path: Path, scheme: str) -> None:
    """A clone has the commit; a denied one fails at its first request and leaves nothing behind."""
    depot = open_depot(scheme)
    # Over HTTP each of the three requests is decided, over HTTPS the one connection.
    by = ["http"] * 3 if scheme == "http" else ["connect"]
    depot.scene.allowed(["git", "clone", "--quiet", depot.good, str(tmp_path / "good")], depot.env, by=by)
    assert (tmp_path / "good" / "README").read_text() == FIRST_FILE
    depot.scene.denied(["git", "clone", "--quiet", depot.evil, str(tmp_path / "evil")], depot.env, by=depot.by)
    assert not (tmp_path / "evil").exists()


@WAYS
def test_push(open_depot: OpenDepot, tmp_path: Path, scheme: str) -> None:
    """A pack too large for git's buffer goes out chunked and arrives; a denied push changes nothing."""
    depot = open_depot(scheme)
    work = tmp_path / "work"
    depot.git("clone", "--quiet", str(depot.repository), str(work))
    (work / "large").write_bytes(os.urandom(2_000_000))
    depot.git("add", "large", cwd=work)
    depot.git("commit", "--quiet", "--message=large", cwd=work)
    before = depot.git("rev-parse", "main", cwd=depot.repository)

    depot.scene.denied(["git", "push", "--quiet", depot.evil, "main"], depot.env, by=depot.by, cwd=work)
    assert depot.git("rev-parse", "main", cwd=depot.repository) == before

    # References, a probe without a pack, the pack.
    by = ["http"] * 3 if scheme == "http" else ["connect"]
    depot.scene.allowed(["git", "push", "--quiet", depot.good, "main"], depot.env, by=by, cwd=work)
    assert depot.scene.requests[-1].headers["Transfer-Encoding"] == "chunked"
    assert depot.git("rev-parse", "main", cwd=depot.repository) == depot.git("rev-parse", "main", cwd=work)
