"""Node through the gateway, by undici's ProxyAgent, which is what `fetch` is given in most programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures.programs import SetScene
from tests.support.origins.web import HELLO


@pytest.mark.parametrize(
    ("scheme", "protocols"), [("http", ["connect", "connect/http"]), ("https", ["connect"])], ids=["http", "https"]
)
def test_undici_proxy_agent(set_scene: SetScene, undici: Path, scheme: str, protocols: list[str]) -> None:
    """ProxyAgent opens a tunnel even for http://; the request inside is then decided as what it is."""
    scene = set_scene(scheme)
    env = {**scene.env, "NODE_EXTRA_CA_CERTS": str(scene.ca)}
    command = ["node", str(undici / "scripts" / "fetch.mjs"), scene.proxy]
    assert scene.allowed([*command, scene.good], env, by=protocols).stdout == HELLO
    done = scene.denied([*command, scene.evil], env, by="connect")
    assert "403" in done.stderr
