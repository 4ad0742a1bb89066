"""wget through the gateway, told by its environment."""

from __future__ import annotations

import pytest

from tests.support.fixtures.programs import SetScene
from tests.support.origins.web import HELLO
from tests.support.programs import need


@pytest.mark.parametrize(("scheme", "protocol"), [("http", "http"), ("https", "connect")], ids=["http", "https"])
def test_wget(set_scene: SetScene, scheme: str, protocol: str) -> None:
    """wget follows the gateway's variables, and takes a denial for an answer: it does not try again."""
    need("wget")
    scene = set_scene(scheme)
    command = [
        "wget",
        "--no-config",
        "--timeout=20",
        "--ca-certificate",
        str(scene.ca),
        "--quiet",
        "--output-document=-",
    ]
    assert scene.allowed([*command, scene.good], scene.proxy_env, by=[protocol]).stdout == HELLO
    scene.denied([*command, scene.evil], scene.proxy_env, by=protocol)
