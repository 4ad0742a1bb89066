"""`SandboxManager` with a proxy of someone else's: it decides, and nothing else can be reached."""

from __future__ import annotations

import os
import subprocess

import pytest

from exeat.embed.sandbox_manager import SandboxManager
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate
from tests.support.origins.plain import Origin
from tests.support.programs import need

USER, PASSWORD = "user", "hunter2"

pytestmark = pytest.mark.usefixtures("start_way")


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    need("curl")
    return start_origin()


@pytest.fixture
def proxy(start_gate: StartGate, origin: Origin) -> Gate:
    """A proxy outside, with a password and a policy of its own."""
    return start_gate(
        allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]}, credentials=(USER, PASSWORD)
    )


def commands(origin: Origin) -> list[str]:
    good = f"http://good.test:{origin.port}/"
    curl = "curl -sS -o /dev/null -w '%{http_code} %{http_connect}\\n'"
    return [
        "sh",
        "-c",
        f"{curl} {good}; {curl} -p {good}; {curl} http://other.test/;"
        f"{curl} --noproxy '*' {good}; {curl} --noproxy '*' http://127.0.0.1:{origin.port}/",
    ]


@pytest.mark.parametrize("named", ["localhost", "proxy.test"])
def test_the_proxy_decides_and_is_all_that_there_is(proxy: Gate, origin: Origin, named: str) -> None:
    """A request, a tunnel, a host that the proxy refuses; and past it neither by name nor by address."""
    network: dict[str, object] = {"proxy": f"http://{USER}:{PASSWORD}@{named}:{proxy.gateway.port}"}
    if named != "localhost":
        network["hosts"] = {named: "127.0.0.1"}
    manager = SandboxManager({"sandbox": {"network": network}})
    given = None if named == "localhost" else {"PATH": os.environ["PATH"], "HTTP_PROXY": "http://another.test"}
    done = manager.run_sync(commands(origin), env=given)
    assert done.text.splitlines() == ["200 000", "200 200", "403 000", "000 000", "000 000"], done
    assert len(origin.heads) == 2
    wrapped = manager.wrap(["curl", "-sS", f"http://good.test:{origin.port}/"])
    assert PASSWORD not in " ".join(wrapped)
    for env, status in ((manager.environ(), 0), (dict(os.environ), 2)):
        ended = subprocess.run(wrapped, env=env, capture_output=True, timeout=40, check=False)
        assert ended.returncode == status, ended
        assert (b"env=manager.environ()" in ended.stderr) == bool(status)


def test_an_allowed_host_is_not_a_proxy_for_that(proxy: Gate, origin: Origin) -> None:
    """Without the rule's option `proxy` the same way is closed: requests are read, and name another host."""
    network = {"allowed_domains": [f"127.0.0.1:{proxy.port}"]}
    way = f"-x http://{USER}:{PASSWORD}@127.0.0.1:{proxy.port} http://good.test:{origin.port}/"
    curl = "curl -sS -o /dev/null -w '%{http_code} %{http_connect}\\n'"
    done = SandboxManager({"sandbox": {"network": network}}).run_sync(["sh", "-c", f"{curl} {way}; {curl} -p {way}"])
    assert done.text.splitlines() == ["400 000", "000 405"], done
    assert origin.connections == 0
