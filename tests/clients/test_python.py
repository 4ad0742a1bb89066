"""The HTTP libraries of Python through the gateway, each in a process of its own."""

from __future__ import annotations

import sys

import pytest

from tests.clients.scene import Scene
from tests.support.fixtures.programs import HERE, SetScene
from tests.support.origins.web import HELLO

SCHEMES = pytest.mark.parametrize(
    ("scheme", "protocol"), [("http", "http"), ("https", "connect")], ids=["http", "https"]
)


def script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "scripts" / name), *arguments]


def trusting(scene: Scene, env: dict[str, str]) -> dict[str, str]:
    """Our authority, by the variable that OpenSSL reads and by the one that requests reads."""
    return {**env, "SSL_CERT_FILE": str(scene.ca), "REQUESTS_CA_BUNDLE": str(scene.ca)}


@SCHEMES
@pytest.mark.parametrize("library", ["urllib", "requests", "httpx"])
def test_libraries_that_read_the_environment(set_scene: SetScene, library: str, scheme: str, protocol: str) -> None:
    """Nothing in the program knows of a proxy: the gateway's variables are enough. A denial is an exception."""
    scene = set_scene(scheme)
    env = trusting(scene, scene.proxy_env)
    assert scene.allowed(script(f"get_{library}.py", scene.good), env, by=[protocol]).stdout == HELLO
    done = scene.denied(script(f"get_{library}.py", scene.evil), env, by=protocol)
    assert "403" in done.stderr


@pytest.mark.parametrize(
    ("scheme", "protocols"), [("http", ["socks5", "socks5/http"]), ("https", ["socks5"])], ids=["http", "https"]
)
def test_requests_over_socks5(set_scene: SetScene, scheme: str, protocols: list[str]) -> None:
    """requests with socks5h:// in its environment leaves names to the gateway."""
    scene = set_scene(scheme)
    env = trusting(scene, {**scene.env, "HTTP_PROXY": scene.socks, "HTTPS_PROXY": scene.socks})
    assert scene.allowed(script("get_requests.py", scene.good), env, by=protocols).stdout == HELLO
    scene.denied(script("get_requests.py", scene.evil), env, by="socks5")


@SCHEMES
def test_aiohttp(set_scene: SetScene, scheme: str, protocol: str) -> None:
    """aiohttp with `proxy=`, for both schemes."""
    scene = set_scene(scheme)
    env = trusting(scene, dict(scene.env))
    assert scene.allowed(script("get_aiohttp.py", scene.good, scene.proxy), env, by=[protocol]).stdout == HELLO
    done = scene.denied(script("get_aiohttp.py", scene.evil, scene.proxy), env, by=protocol)
    assert "403" in done.stderr
