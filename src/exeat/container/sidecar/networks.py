"""Networks at an engine: internal ones for sandboxes, and the one through which the sidecar goes out.

An internal network has no way to anywhere: no route, no masquerading, and no address of the host on its bridge, or all
that listens on the host could be reached there.
"""

from __future__ import annotations

from typing import Any, Final

from exeat.container.engine_lock import held
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import KIND, labels

SANDBOX: Final = "exeat.sandbox"
OUT: Final = "exeat-out"
_BRIDGE: Final = "com.docker.network.bridge"
_ISOLATED_SINCE: Final = (1, 48)  # of the API: Docker 28


def network_of(sandbox: str) -> str:
    return f"exeat-net-{sandbox}"


def ensure_network(engine: Engine, sandbox: str) -> str:
    """The internal network of a sandbox, made if it is not there. Returns its name. Raises EngineError."""
    name = network_of(sandbox)
    _ensure(engine, name, is_internal=True, marks={**labels("network", is_kept=True), SANDBOX: sandbox})
    return name


def ensure_way_out(engine: Engine) -> str:
    """The network that the sidecar goes out through. No sandbox is ever on it."""
    _ensure(engine, OUT, is_internal=False, marks=labels("network", is_kept=True))
    return OUT


def remove_network(engine: Engine, sandbox: str) -> None:
    """Remove the network of a sandbox, after all that is connected to it has been disconnected."""
    try:
        found = find_network(engine, network_of(sandbox))
        for container in found.get("Containers") or {}:
            body = {"Container": container, "Force": True}
            engine.raw("POST", f"/networks/{found['Id']}/disconnect", body=body)
        engine.call("DELETE", f"/networks/{found['Id']}")
    except NotFoundError:
        pass


def find_network(engine: Engine, name: str) -> dict[str, Any]:
    """Raises NotFoundError; EngineError if a network of this name is not ours."""
    found: dict[str, Any] = engine.call("GET", f"/networks/{name}")
    if (found.get("Labels") or {}).get(KIND) != "network":
        raise EngineError(
            f"there is a network {name} that exeat did not make", fix=f"{engine.kind} network rm {name}, if unused"
        )
    return found


def subnets_of(network: dict[str, Any]) -> list[str]:
    found = [each["Subnet"] for each in (network.get("IPAM") or {}).get("Config") or () if each.get("Subnet")]
    if not found:
        raise EngineError(f"the network {network['Name']} has no addresses", detail="its IPAM has no subnet")
    return found


def _ensure(engine: Engine, name: str, *, is_internal: bool, marks: dict[str, str]) -> None:
    try:
        found = find_network(engine, name)
    except NotFoundError:
        with held(engine, name):
            found = find_or_create(engine, name, is_internal=is_internal, marks=marks)
    if bool(found.get("Internal")) != is_internal:
        raise EngineError(
            f"the network {name} is not {'internal' if is_internal else 'a way out'}",
            fix=f"{engine.kind} network rm {name}, and try again",
        )


def find_or_create(engine: Engine, name: str, *, is_internal: bool, marks: dict[str, str]) -> dict[str, Any]:
    """As an engine describes it. Raises EngineError."""
    try:
        return find_network(engine, name)  # another process was faster
    except NotFoundError:
        pass
    if engine.kind == "podman":  # only its own API can leave the name server out
        body = {"name": name, "driver": "bridge", "internal": is_internal, "dns_enabled": False, "labels": marks}
        engine.call("POST", "/v4.0.0/libpod/networks/create", body=body)
    else:
        options = _without_host_address(engine) if is_internal else {}
        body = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Internal": is_internal, "Labels": marks}
        engine.call("POST", "/networks/create", body={**body, "Options": options})
    return find_network(engine, name)


def _without_host_address(engine: Engine) -> dict[str, str]:
    options = {f"{_BRIDGE}.enable_ip_masquerade": "false"}
    version = tuple(int(part) for part in str(engine.call("GET", "/version").get("ApiVersion", "1.0")).split("."))
    if version >= _ISOLATED_SINCE:
        return {**options, f"{_BRIDGE}.gateway_mode_ipv4": "isolated", f"{_BRIDGE}.gateway_mode_ipv6": "isolated"}
    return {**options, f"{_BRIDGE}.inhibit_ipv4": "true"}
