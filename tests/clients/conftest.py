"""Fixtures for real programs: a certificate authority of our own, servers, and a gateway in front of them."""

from __future__ import annotations

import fcntl
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.clients.scene import HOSTS, Scene
from tests.conftest import StartGate
from tests.support.own_network import on_the_machines_network
from tests.support.programs import bare_environment, give_up, need, run
from tests.support.starting import CALLERS_ENVIRONMENT
from tests.support.web import App, Web, hello

HERE = Path(__file__).parent
StartWeb = Callable[..., Web]
SetScene = Callable[..., Scene]


@dataclass(frozen=True, slots=True)
class Authority:
    """Files for both sides of TLS: what clients are to trust, and the certificate of good.test and evil.test."""

    ca: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_authority(folder: Path) -> Authority:
    made = Authority(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    root = trustme.CA()
    root.cert_pem.write_to_path(str(made.ca))
    leaf = root.issue_cert(*HOSTS)
    leaf.private_key_pem.write_to_path(str(made.key))
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(str(made.certificate), append=True)
    return made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A bare environment whose HOME is an empty folder."""
    return bare_environment(tmp_path / "home")


@pytest.fixture
def start_web(authority: Authority) -> Iterator[StartWeb]:
    """Start web servers that are stopped when the test ends."""
    servers: list[Web] = []

    def start(app: App, scheme: str) -> Web:
        web = Web(app, authority.server_context() if scheme == "https" else None)
        servers.append(web)
        return web

    yield start
    for web in servers:
        web.close()


@pytest.fixture
def set_scene(start_web: StartWeb, start_gate: StartGate, env: dict[str, str], authority: Authority) -> SetScene:
    """A server for both names, and a gateway that lets one of them pass. The gateway stops first, then the server."""

    def set_up(scheme: str = "http", app: App = hello, **settings: Any) -> Scene:
        web = start_web(app, scheme)
        gate = start_gate(allow=[f"good.test:{web.port}"], hosts=HOSTS, **settings)
        return Scene(gate, scheme, web.port, web.requests, env, authority.ca)

    return set_up


@pytest.fixture(scope="session")
def undici() -> Path:
    """The folder where Node finds the pinned undici. Its download is the only traffic beyond loopback."""
    need("node", "npm")
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["undici"]
    installed = HERE / "node_modules" / "undici" / "package.json"
    with (HERE / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not installed.exists() or json.loads(installed.read_text())["version"] != wanted:
            # The machine's own npm settings apply: they say where its packages come from.
            install = [*on_the_machines_network(), "npm", "install", "--no-audit", "--no-fund"]
            done = run(install, CALLERS_ENVIRONMENT, cwd=HERE, timeout_s=100)
            if done.status != 0:
                give_up(f"undici: npm install failed: {done.stderr.strip()}")
    return HERE


@pytest.fixture
def h2_port(authority: Authority, env: dict[str, str]) -> Iterator[int]:
    """The port of a server that speaks HTTP/2 only."""
    need("node")
    command = ["node", str(HERE / "scripts" / "h2_server.mjs"), str(authority.certificate), str(authority.key)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()
