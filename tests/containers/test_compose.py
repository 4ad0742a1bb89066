"""The compose file of the examples, done by the engine's API: its agent has one way out, and that is the gateway."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from exeat.container.gateway_image import ensure_gateway_image
from exeat.engine.client import Engine
from tests.support.engines.base import Base
from tests.support.engines.boxes import ADDRESSES, PORT, execute, remove, servers, try_from
from tests.support.engines.compose import container_of, network_of, parse
from tests.support.gateways.scene import wait_until

FILE = Path(__file__).parents[2] / "examples" / "compose" / "compose.yaml"
_ALLOWED, _OTHER = ADDRESSES


def test_the_agent_has_no_network_but_the_inside() -> None:
    """Whatever else is in the file: a service on a network with a way out would have one, and root could change it."""
    compose = parse(FILE.read_text())
    assert compose.keys() == {"services", "networks"}
    gateway, agent = compose["services"]["gateway"], compose["services"]["agent"]
    inside = compose["networks"]["inside"]
    assert inside["internal"] is True
    assert inside["driver_opts"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}
    assert agent["networks"] == ["inside"]
    assert agent["dns"] == ["127.0.0.1"]
    for service in (gateway, agent):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    variables = {key.removesuffix("_PROXY"): value for key, value in agent["environment"].items()}
    assert variables == dict.fromkeys(("HTTP", "HTTPS", "ALL"), "http://gateway:8888") | {"NO": ""}


@pytest.mark.threat("T-S4")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11")
def test_it_does_what_it_says(docker: Base) -> None:
    compose = parse(FILE.read_text())
    compose["services"]["gateway"]["image"] = ensure_gateway_image(Engine(str(docker.socket), "docker"), docker.image)
    compose["services"]["gateway"]["environment"]["PROXY_ALLOWLIST"] = f"{_ALLOWED}:{PORT}"
    compose["services"]["agent"] |= {"image": docker.image, "command": ["sleep", "1000"]}
    with servers(docker), ExitStack() as stack:
        for name, settings in compose["networks"].items():
            docker.ask("POST", "/networks/create", network_of(f"compose-{name}", settings))
            stack.callback(remove, docker, f"/networks/compose-{name}")
        for name, service in compose["services"].items():
            body, host_config, networks = container_of(service)
            host_config["NetworkMode"] = f"compose-{networks[-1]}"
            known = {"EndpointsConfig": {f"compose-{networks[-1]}": {"Aliases": [name]}}}
            whole = {**body, "HostConfig": host_config, "NetworkingConfig": known}
            docker.ask("POST", f"/containers/create?name=compose-{name}", whole)
            stack.callback(remove, docker, f"/containers/compose-{name}?force=1&v=1")
            for other in networks[:-1]:
                joined = {"Container": f"compose-{name}", "EndpointConfig": {"Aliases": [name]}}
                docker.ask("POST", f"/networks/compose-{other}/connect", joined)
            docker.ask("POST", f"/containers/compose-{name}/start")
            if name == "gateway":
                wait_until(lambda: _health(docker) == "ok", "the gateway to be well")
        url = compose["services"]["agent"]["environment"]["HTTP_PROXY"]
        out = docker.ask("GET", "/networks/compose-outside")["IPAM"]["Config"][0]["Gateway"]
        inside = docker.ask("GET", "/networks/compose-inside")["IPAM"]["Config"][0]["Subnet"].rpartition(".")[0] + ".1"
        assert try_from(
            docker,
            "compose-agent",
            ("through", url, _ALLOWED, PORT),
            ("through", url, _OTHER, PORT),
            *(("direct", address, PORT) for address in (_ALLOWED, out, inside)),
            ("name", "data.test"),
        ) == [200, 403, "no", "no", "no", "no"]
        assert try_from(docker, "compose-gateway", ("direct", _OTHER, PORT), ("direct", out, PORT)) == ["open"] * 2


def _health(docker: Base) -> str:
    """As the engine asks for it, and at once."""
    test = docker.ask("GET", "/containers/compose-gateway/json")["Config"]["Healthcheck"]["Test"]
    return execute(docker, "compose-gateway", *test[1:]).strip()
