"""Placeholders of a sandbox that is kept: the same in each run, as long as it is the same sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exeat import SandboxManager
from tests.support.runs.agent import make_home
from tests.support.runs.running import ANYWHERE, environment, exeat, folder_of

VALUE = "a-value-of-no-use-to-anybody"
SHOW = ["sh", "-c", "echo $KEY"]


class Place:
    """A home, and a secrets file next to it."""

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder, None)
        self.secrets = folder / "s.json"
        self.write("sk-")

    def write(self, shape: str) -> None:
        self.secrets.write_text(json.dumps({"KEY": {"value": VALUE, "hosts": ["api.test"], "shape": shape}}))
        self.secrets.chmod(0o600)

    def show(self, *options: str, command: list[str] = SHOW) -> str:
        env = environment(EXEAT_HOME=str(self.home))
        done = exeat("--quiet", "--secrets", str(self.secrets), *options, command=command, env=env, cwd=ANYWHERE)
        assert done.status == 0, done
        return done.stdout.strip()


@pytest.fixture
def place() -> Iterator[Place]:
    with folder_of(None) as folder:
        yield Place(folder)


@pytest.mark.parametrize("jail", ["netns", "env"])
def test_each_run_of_a_sandbox_has_the_same_placeholder(jail: str, place: Place) -> None:
    first = place.show("--jail", jail, "--empty", "--name", "work")
    assert first.startswith("sk-")
    assert VALUE not in first
    assert place.show("--jail", jail, "--name", "work") == first
    assert place.show("--jail", jail, "--empty", "--name", "other") != first
    assert place.show("--jail", jail) != place.show("--jail", jail)  # the control: without a name nothing is kept
    place.write("ghp_")
    assert place.show("--jail", jail, "--name", "work").startswith("ghp_")


def test_two_first_runs_at_once_have_the_same(place: Place) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: place.show("--empty", "--name", "work"), range(2)))
    assert found[0] == found[1]


def test_the_command_does_not_see_the_file(place: Place) -> None:
    place.show("--empty", "--name", "work")
    file = place.home / "sandboxes" / "work" / "placeholders.json"
    assert "sk-" in file.read_text()  # the control
    assert VALUE not in file.read_text()
    look = f"cat {file} 2>/dev/null; ls -A {place.home}; true"
    assert place.show("--name", "work", command=["sh", "-c", look]) == ""


def test_a_manager_has_them_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEAT_HOME", str(place.home))
    found = []
    for name in ("agent", "agent", "another"):
        with SandboxManager({"sandbox": {"name": name, "secrets": str(place.secrets)}}) as manager:
            found.append(manager.run_sync(SHOW).text.strip())
    assert found[0] == found[1] == place.show("--name", "agent")
    assert found[2] != found[0]
