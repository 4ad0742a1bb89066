"""git over HTTP and HTTPS in a jail, knowing of no proxy, with git's own server behind it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.git import FIRST_FILE, git, git_backend, git_environment, make_repository
from tests.support.origins.web import Web
from tests.support.programs import bare_environment, need
from tests.support.runs.running import folder_of


class Depot:
    """A repository behind a web server."""

    def __init__(self, jail: Jail, start_web: StartWeb, scheme: str, folder: Path) -> None:
        self.jail = jail
        self.repository = folder / "served" / "depot.git"
        self.local = git_environment(bare_environment(folder / "home"))
        # Clones belong to whom the jail was for, and are looked at from outside.
        git(self.local, "config", "--global", "safe.directory", "*")
        make_repository(self.repository, self.local, folder / "first")
        self.web: Web = start_web(git_backend(self.repository.parent, self.local), scheme)
        self.env = git_environment({"GIT_SSL_CAINFO": str(jail.ca)})

    @property
    def place(self) -> str:
        return f"good.test:{self.web.port}"

    def clone(self, host: str, name: str) -> list[str]:
        url = f"{self.web.scheme}://{host}:{self.web.port}/{self.repository.name}"
        return ["git", "clone", "--quiet", url, str(self.jail.folder / name)]

    def head(self) -> str:
        return git(self.local, "rev-parse", "main", cwd=self.repository)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_of(None) as made:
        yield made


@HTTP_AND_HTTPS
def test_clone(any_jail: Jail, start_web: StartWeb, folder: Path, scheme: str) -> None:
    """A clone has the commit, and one that was denied is in no one's way."""
    need("git")
    depot = Depot(any_jail, start_web, scheme, folder)
    any_jail.prove(
        lambda host: depot.clone(host, host), depot.web.port, env=depot.env, seen=lambda: len(depot.web.requests)
    )
    for host in ("good.test", "evil.test"):
        assert (any_jail.folder / host / "README").read_text() == FIRST_FILE


def test_fetch_and_push(jail: Jail, start_web: StartWeb, folder: Path) -> None:
    """2 MB are pushed from one clone and fetched into another, over HTTPS; denied, neither changes anything."""
    need("git")
    depot = Depot(jail, start_web, "https", folder)
    place, env = depot.place, depot.env
    one, other = jail.folder / "one", jail.folder / "other"
    for clone in (one, other):
        jail.works(depot.clone("good.test", clone.name), place, env=env)
    before = depot.head()

    (one / "large").write_bytes(os.urandom(2_000_000))
    jail.give(one)
    commit = "git add large && git commit --quiet --message=large"
    push = ["git", "push", "--quiet", "origin", "main"]
    jail.fails(["sh", "-c", f"{commit} && {shlex.join(push)}"], "good.test:1", env=env, cwd=one)
    assert depot.head() == before
    jail.works(push, place, env=env, cwd=one)
    assert depot.web.requests[-1].headers["Transfer-Encoding"] == "chunked", "too large for git's buffer"
    assert depot.head() != before

    fetch = ["git", "fetch", "--quiet", "origin", "main:fetched"]
    jail.fails(fetch, "good.test:1", env=env, cwd=other)
    jail.works(fetch, place, env=env, cwd=other)
    assert git(depot.local, "rev-parse", "fetched", cwd=other) == depot.head()
