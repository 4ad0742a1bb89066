"""pip through the gateway, told by its environment, with an index of our own behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.scene import Scene
from tests.support.fixtures.programs import SetScene
from tests.support.origins.packages import index, install, pip_environment
from tests.support.programs import need_module


@pytest.fixture(autouse=True)
def _programs() -> None:
    need_module("pip")


def pip_env(scene: Scene) -> dict[str, str]:
    return pip_environment(scene.proxy_env, scene.ca)


def test_install_over_https(set_scene: SetScene, tmp_path: Path) -> None:
    """The index is read and the wheel installed through one tunnel; a denied index leaves nothing installed."""
    scene = set_scene("https", index())
    scene.allowed(install(scene.good, tmp_path / "good"), pip_env(scene), by=["connect"])
    assert (tmp_path / "good" / "tiny.py").exists()
    scene.denied(install(scene.evil, tmp_path / "evil"), pip_env(scene), by="connect")
    assert not (tmp_path / "evil" / "tiny.py").exists()


def test_an_allowed_index_whose_files_are_elsewhere(set_scene: SetScene, tmp_path: Path) -> None:
    """An index may send pip to any host for the files; that host needs a rule of its own."""
    scene = set_scene("https", index("evil.test"))
    done, made = scene.attempt(install(scene.good, tmp_path / "target"), pip_env(scene))
    assert done.status != 0
    assert [(line["verdict"], line["host"]) for line in made] == [("allow", "good.test"), ("deny", "evil.test")]
    assert [request.target for request in scene.requests] == ["/simple/tiny/"]
