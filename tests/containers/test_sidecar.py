"""The gateway as a sidecar, at real engines: its image, its networks, and two sandboxes that may not have the same."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from exeat.container.builder import SandboxBuilder
from exeat.container.gateway_image import ensure_gateway_image
from exeat.container.registry import NetworkPolicy, Registry, SandboxConfig, UnknownSandboxError
from exeat.container.sidecar import Proxy, ensure_network, ensure_proxy, remove_network
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.errors import ConfigError
from tests.support.engines import boxes
from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOT, Base, Way
from tests.support.engines.boxes import PORT, execute, remove, servers, start, try_from
from tests.support.engines.session import Engines
from tests.support.programs import run
from tests.support.runs.running import environment

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11")
ONE, TWO = "sidecar-one", "sidecar-two"
ADDRESSES = dict(zip((ONE, TWO), boxes.ADDRESSES, strict=True))
LISTENING = 9000
_LISTENER = f"import socket, time; s = socket.create_server(('', {LISTENING})); time.sleep(1000)"


@pytest.fixture(scope="module", params=(DOCKER_ROOT, PODMAN_ROOT), ids=lambda way: way.name)
def base(engines: Engines, request: pytest.FixtureRequest) -> Iterator[Base]:
    """With two servers on its network. They listen on all addresses, as many things on a host do."""
    way: Way = request.param
    base = engines.get(way)
    with servers(base):
        yield base


@pytest.fixture(scope="module")
def engine(base: Base) -> Engine:
    return Engine(str(base.socket), base.kind)


@pytest.fixture(scope="module")
def image(base: Base, engine: Engine) -> str:
    return ensure_gateway_image(engine, base.image)


def _registry(**hosts: str) -> Registry:
    """Each sandbox may reach one address, unless it is said which."""
    made = Registry()
    for name, address in ADDRESSES.items():
        allowed = hosts.get(name.removeprefix("sidecar-"), address)
        made.register_sandbox(SandboxConfig(name, network=NetworkPolicy((allowed,), (PORT,))))
    return made


def _address(base: Base, box: str, network: str) -> str:
    networks = base.ask("GET", f"/containers/{box}/json")["NetworkSettings"]["Networks"]
    return str(networks[network]["IPAddress"])


class _Scene:
    """The sidecar, and a container for each of two sandboxes."""

    def __init__(self, base: Base, engine: Engine, image: str) -> None:
        self.base, self.engine = base, engine
        self.registry = _registry()
        with ThreadPoolExecutor(6) as threads:  # as several programs that begin at once
            found = list(threads.map(self.ensure, [ONE, TWO] * 3))
        self.proxies: dict[str, Proxy] = {each.network.removeprefix("exeat-net-"): each for each in found}
        assert {(each.network, each.url) for each in found} == {
            (each.network, each.url) for each in self.proxies.values()
        }
        self.boxes = {
            name: start(base, name, base.image, proxy.host_config, Cmd=["python3", "-c", _LISTENER])
            for name, proxy in self.proxies.items()
        }
        self.outside = start(base, "sidecar-outside", base.image, {"NetworkMode": "exeat-out"}, Cmd=["sleep", "1000"])

    def ensure(self, name: str) -> Proxy:
        return ensure_proxy(self.engine, self.registry, ensure_network(self.engine, name), self.base.image)

    def ensure_as_a_program_does(self, name: str) -> Proxy:
        async def ensure() -> Proxy:
            builder = SandboxBuilder(self.registry, self.engine)
            found: Proxy = await builder.ensure_proxy(await builder.ensure_network(name))
            return found

        return asyncio.run(ensure())

    def probe(self, name: str, *attempts: tuple[object, ...]) -> list[Any]:
        return try_from(self.base, self.boxes[name], *attempts)

    @property
    def sidecar(self) -> dict[str, Any]:
        return dict(self.base.ask("GET", "/containers/exeat-proxy/json"))

    def log(self) -> str:
        return str(self.base.ask("GET", "/containers/exeat-proxy/logs?stdout=1&stderr=1"))


@pytest.fixture(scope="module")
def scene(base: Base, engine: Engine, image: str) -> Iterator[_Scene]:
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("EXEAT_GATEWAY_BASE", base.image)
        yield from _scene(base, engine, image)


def _scene(base: Base, engine: Engine, image: str) -> Iterator[_Scene]:
    with ExitStack() as stack:
        for path in ("/networks/exeat-out", "/volumes/exeat-proxy"):
            stack.callback(remove, base, path)
        for name in ADDRESSES:
            stack.callback(remove_network, engine, name)
        for name in ("sidecar-outside", "exeat-proxy", *ADDRESSES):
            stack.callback(remove, base, f"/containers/{name}?force=1&v=1")
        yield _Scene(base, engine, image)
    assert [each["Name"] for each in base.ask("GET", "/networks") if each["Name"].startswith("exeat-")] == []


# The image


def test_the_image_is_made_of_what_is_installed_here(base: Base, engine: Engine, image: str) -> None:
    assert ensure_gateway_image(engine, base.image) == image
    found = base.ask("GET", f"/images/{image}/json")
    assert found["Config"]["User"] == "65532:65532"
    assert found["Config"]["Entrypoint"] == ["python3", "-I", "-m", "exeat"]
    without_base = found["Size"] - base.ask("GET", f"/images/{base.image}/json")["Size"]
    assert without_base < 64 << 20
    argv = [sys.executable, "-m", "exeat", "image", "gateway", "--base", base.image, "--tag", "exeat-test-gateway:7"]
    said = run(argv, environment(**base.variables))
    assert said.status == 0, said.stderr
    assert said.stdout == "exeat-test-gateway:7\n"
    assert base.ask("GET", "/images/exeat-test-gateway:7/json")["Id"] == found["Id"]
    remove(base, "/images/exeat-test-gateway:7")


def test_a_base_that_does_not_fit_is_refused_with_the_reason(base: Base, engine: Engine, image: str) -> None:
    bare = base.ask("POST", "/containers/create", {"Image": base.image, "Cmd": ["true"]})["Id"]
    base.ask("POST", f"/commit?container={bare}&repo=exeat-test-bare&tag=1&changes=ENV%20PATH=/nowhere", {})
    base.ask("DELETE", f"/containers/{bare}")
    try:
        with pytest.raises(ConfigError, match="cannot be built on exeat-test-bare:1: it has no python3"):
            ensure_gateway_image(engine, "exeat-test-bare:1")
    finally:
        remove(base, "/images/exeat-test-bare:1?force=1")


# The sidecar


def test_it_is_hardened_and_well(scene: _Scene) -> None:
    found = scene.sidecar
    config = found["HostConfig"]
    assert config["ReadonlyRootfs"]
    assert "no-new-privileges" in str(config["SecurityOpt"])
    status = execute(scene.base, found["Id"], "python3", "-I", "-c", "print(open('/proc/1/status').read())")
    assert {line.split("\t")[1].strip() for line in status.splitlines() if line.startswith("CapEff")} == {"0" * 16}
    assert "Uid:\t65532\t65532" in status
    assert "NoNewPrivs:\t1" in status
    assert execute(scene.base, found["Id"], "python3", "-I", "-m", "exeat.serve.health").strip() == "ok"
    forwards = execute(scene.base, found["Id"], "cat", "/proc/sys/net/ipv4/ip_forward")
    assert forwards.strip() == "0"
    assert not found["Config"]["Labels"].get("exeat.owner"), "it outlives whoever has started it"


@pytest.mark.threat("T-S3")
def test_its_log_cannot_fill_the_disk(scene: _Scene) -> None:
    """Every request is a line, and a sandbox can make as many as it likes."""
    path = "/v4.0.0/libpod" if scene.base.kind == "podman" else ""  # its other inspection does not say it
    log = scene.base.ask("GET", f"{path}/containers/exeat-proxy/json")["HostConfig"]["LogConfig"]
    if log["Type"] not in ("json-file", "k8s-file"):
        pytest.skip(f"{log['Type']} has limits of its own")
    assert log["Config"]["max-size"] if log["Type"] == "json-file" else log["Size"] not in ("", "0B"), log
    assert '"start"' in scene.log(), "the control: records are in it"


@pytest.mark.threat("T-S4")
def test_a_sandbox_has_its_own_hosts_and_no_others(scene: _Scene) -> None:
    urls = {name: proxy.url for name, proxy in scene.proxies.items()}
    for own, other in ((ONE, TWO), (TWO, ONE)):
        elsewhere = scene.proxies[other].address
        stolen = urls[other].replace(elsewhere, scene.proxies[own].address)
        nameless = f"http://{scene.proxies[own].address}:8888"
        assert scene.probe(
            own,
            ("through", urls[own], ADDRESSES[own], PORT),
            ("through", urls[own], ADDRESSES[other], PORT),
            ("through", stolen, ADDRESSES[other], PORT),
            ("through", stolen, ADDRESSES[own], PORT),
            ("through", nameless, ADDRESSES[own], PORT),
        ) == [200, 403, 407, 407, 407]
    refused = [json.loads(line[line.index("{") :]) for line in scene.log().splitlines() if '"credentials"' in line]
    assert {line["sandbox"] for line in refused} == {ONE, TWO}
    assert all(url.partition("@")[0].rpartition(":")[2] not in scene.log() for url in urls.values())


@pytest.mark.threat("T-S4")
def test_there_is_no_way_round_it(scene: _Scene) -> None:
    """Not to servers, nor to the host by any of its addresses, nor to the other sandbox, nor out in a name."""
    other = scene.proxies[TWO]
    neighbour = _address(scene.base, scene.boxes[TWO], other.network)
    gateway = scene.sidecar["NetworkSettings"]["Networks"]["exeat-out"]["Gateway"]
    network = scene.base.ask("GET", f"/networks/{scene.proxies[ONE].network}")
    bridge = network["IPAM"]["Config"][0]["Subnet"].rpartition(".")[0] + ".1"
    targets = [(ADDRESSES[ONE], PORT), (gateway, PORT), (bridge, PORT), (neighbour, LISTENING), (other.address, 8888)]
    assert scene.probe(ONE, *(("direct", *each) for each in targets), ("name", "data.test")) == ["no"] * 6
    # The controls: all of them are there, for those who have a way.
    reach = [("direct", ADDRESSES[ONE], PORT), ("direct", gateway, PORT)]
    assert try_from(scene.base, scene.outside, *reach) == ["open"] * 2
    assert (
        try_from(scene.base, "exeat-proxy", ("direct", neighbour, LISTENING), ("direct", other.address, 8888))
        == ["open"] * 2
    )


@pytest.mark.threat("T-S4")
def test_new_rules_are_in_force_without_a_restart(scene: _Scene) -> None:
    before = scene.sidecar
    url = scene.proxies[ONE].url
    scene.registry = _registry(one=ADDRESSES[TWO])
    assert scene.ensure(ONE).url == url
    attempts = [("through", url, ADDRESSES[name], PORT) for name in (ONE, TWO)]
    assert scene.probe(ONE, *attempts) == [403, 200]
    assert scene.probe(TWO, ("through", scene.proxies[TWO].url, ADDRESSES[TWO], PORT)) == [200]
    scene.registry = _registry()
    assert str(scene.ensure_as_a_program_does(ONE)) == scene.proxies[ONE].address
    assert scene.probe(ONE, *attempts) == [200, 403]
    after = scene.sidecar
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])


@pytest.mark.threat("T-S4")
@pytest.mark.parametrize("is_named", [True, False], ids=["its-network", "all-networks"])
def test_a_sandbox_that_is_isolated_now_loses_what_it_had(scene: _Scene, is_named: bool) -> None:
    url = scene.ensure(ONE).url
    attempt = ("through", url, ADDRESSES[ONE], PORT)
    assert scene.probe(ONE, attempt) == [200], "the control"
    isolated = Registry()
    isolated.register_sandbox(SandboxConfig(ONE))
    if is_named:
        with pytest.raises(ConfigError, match="is isolated"):
            ensure_proxy(scene.engine, isolated, scene.proxies[ONE].network, scene.base.image)
    else:
        ensure_proxy(scene.engine, isolated, None, scene.base.image)
    try:
        assert scene.probe(ONE, attempt) == [403]
        assert scene.probe(TWO, ("through", scene.ensure(TWO).url, ADDRESSES[TWO], PORT)) == [200]
    finally:
        scene.ensure(ONE)


def test_it_comes_back_with_its_clients(scene: _Scene) -> None:
    """Stopped, or removed by someone: the credentials of running sandboxes still hold."""
    url = scene.proxies[TWO].url
    scene.base.ask("DELETE", "/containers/exeat-proxy?force=1")
    found = scene.ensure(TWO)
    again = scene.ensure(ONE)
    assert found.url.partition("@")[0] == url.partition("@")[0]
    assert scene.probe(TWO, ("through", found.url, ADDRESSES[TWO], PORT)) == [200]
    assert scene.probe(ONE, ("through", again.url, ADDRESSES[TWO], PORT)) == [403]


def test_what_is_not_ours_is_not_touched(scene: _Scene) -> None:
    base = scene.base
    base.ask("POST", "/networks/create", {"Name": "exeat-net-theirs", "Internal": True})
    try:
        with pytest.raises(EngineError, match="that exeat did not make"):
            ensure_network(scene.engine, "theirs")
    finally:
        base.ask("DELETE", "/networks/exeat-net-theirs")
    with pytest.raises(UnknownSandboxError):
        ensure_proxy(scene.engine, Registry(), scene.proxies[ONE].network, base.image)
    isolated = Registry()
    isolated.register_sandbox(SandboxConfig(ONE))
    with pytest.raises(ConfigError, match="is isolated"):
        ensure_proxy(scene.engine, isolated, scene.proxies[ONE].network, base.image)
