"""The sidecar: one container with the gateway, joined to the networks of sandboxes, each a client of its own.

Everything can be called again and by several processes at once. Nothing is kept here: the engine has the container, the
networks and a volume, and the volume has the clients and, as a label, the key that credentials are derived from. So
every process finds the same credential for the same sandbox, and no one has to be asked for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from exeat.container.engine_lock import volume_labels
from exeat.container.gateway_image import DATA, PORT, ensure_gateway_image
from exeat.container.sidecar.networks import OUT, SANDBOX, ensure_way_out, find_network, subnets_of
from exeat.engine.client import Engine
from exeat.engine.errors import ConflictError, EngineError, NotFoundError
from exeat.engine.owner import KIND, labels
from exeat.errors import ConfigError
from exeat.gateway.credentials import Credentials
from exeat.gateway.process import proxy_url, proxy_variables

NAME: Final = "exeat-proxy"
KEY: Final = "exeat.key"
_MB: Final = 1 << 20
# Of logs that grow without end otherwise. Every request is a line, so a sandbox could fill the disk of the host.
_LOG_LIMITS: Final = {"json-file": {"max-size": "100m", "max-file": "5"}, "k8s-file": {"max-size": "500m"}}
_TRIES: Final = 100
_AGAIN_S: Final = 0.1


class HasSandboxes(Protocol):
    """What is needed of a registry."""

    def sandbox(self, name: str) -> Any: ...
    def sandboxes(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Proxy:
    """The sidecar as a sandbox on one network sees it. As text it is the address."""

    address: str
    network: str = ""
    url: str = field(default="", repr=False)  # with the credential of the sandbox

    def __str__(self) -> str:
        return self.address

    @property
    def variables(self) -> dict[str, str]:
        """What a program in the sandbox needs."""
        return proxy_variables(self.url)

    @property
    def host_config(self) -> dict[str, Any]:
        """What a container on the network has to be created with.

        Docker before 26 asks the host's name servers for containers on internal networks, too: data would leave in
        names. So the container's server is itself, where none is. IPv6 would reach the host by its link-local address.
        """
        return {
            "NetworkMode": self.network,
            "Dns": ["127.0.0.1"],
            "Sysctls": {"net.ipv6.conf.all.disable_ipv6": "1"},
        }


def ensure_proxy(engine: Engine, registry: HasSandboxes, network_name: str | None = None, base: str = "") -> Proxy:
    """Run the sidecar with the rules of the registry, joined to the network if one is named.

    Without a network, all sandboxes that have one are given their rules. Raises EngineError, ConfigError, BuildError;
    ValueError for a network of a sandbox that the registry does not know.
    """
    network = find_network(engine, network_name) if network_name is not None else None
    config = registry.sandbox(_sandbox_of(network)) if network is not None else None
    isolated = config.name if config is not None and config.network.is_isolated else ""
    if isolated and not _was_used(engine):
        raise _is_isolated(isolated)
    image = ensure_gateway_image(engine, base)
    key = _ensure_key(engine)
    container = _ensure_running(engine, image, ensure_way_out(engine))
    if isolated:
        _remove_client(engine, container, isolated)
        raise _is_isolated(isolated)
    if network is None or config is None:
        _refresh_all(engine, registry, container, key)
        return Proxy(_address_in(engine, container, None))
    credential = _credential(key, config.name)
    address = join(engine, container, network["Name"])
    _set_client(engine, container, network, config, credential)
    url = proxy_url(address, PORT, Credentials(config.name, credential))
    return Proxy(address, network["Name"], url)


def _is_isolated(name: str) -> ConfigError:
    return ConfigError(f"the sandbox {name} is isolated", expected="network=NetworkPolicy(allowed_hosts=...)")


def _was_used(engine: Engine) -> bool:
    """Then it may know a sandbox that was not isolated before, and has to be told, even if it does not run now."""
    try:
        engine.call("GET", f"/volumes/{NAME}")
    except NotFoundError:
        return False
    return True


def _sandbox_of(network: dict[str, Any]) -> str:
    name: str = (network.get("Labels") or {}).get(SANDBOX, "")
    if not name:
        raise ConfigError(
            f"the network {network['Name']} belongs to no sandbox", expected="one that ensure_network has made"
        )
    return name


def _refresh_all(engine: Engine, registry: HasSandboxes, container: str, key: bytes) -> None:
    for network in engine.call("GET", "/networks", query={"filters": {"label": [SANDBOX]}}) or ():
        name = network["Labels"][SANDBOX]
        config = next((each for each in registry.sandboxes() if each.name == name), None)
        if config is not None and config.network.is_isolated:
            _remove_client(engine, container, name)
        elif config is not None:
            join(engine, container, network["Name"])
            _set_client(engine, container, network, config, _credential(key, name))


def _ensure_key(engine: Engine) -> bytes:
    """A volume is made once; later requests get the same one, with its labels."""
    marks = {**labels("volume", is_kept=True), KEY: secrets.token_hex(32)}
    found = volume_labels(engine, NAME, marks).get(KEY, "")
    if not found:
        raise EngineError(f"there is a volume {NAME} that exeat did not make", fix=f"{engine.kind} volume rm {NAME}")
    return bytes.fromhex(found)


def _credential(key: bytes, sandbox: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, sandbox.encode(), "sha256")).decode().rstrip("=")


# The container


def _ensure_running(engine: Engine, image: str, way_out: str) -> str:
    """The id of the container. The next round handles a process that comes between two steps."""
    for _ in range(_TRIES):
        try:
            found = engine.call("GET", f"/containers/{NAME}/json")
            if (found["Config"].get("Labels") or {}).get(KIND) != "sidecar":
                raise EngineError(
                    f"there is a container {NAME} that exeat did not make", fix=f"{engine.kind} rm {NAME}, if unused"
                )
            if found["Config"]["Labels"].get("exeat.image") != image:  # of another version of exeat
                engine.call("DELETE", f"/containers/{NAME}", query={"force": True})
                continue
            if found["State"].get("Running"):
                return str(found["Id"])
            _start(engine, found["Id"])
            continue
        except NotFoundError:
            pass
        except ConflictError:
            time.sleep(_AGAIN_S)
            continue
        try:
            engine.call("POST", "/containers/create", query={"name": NAME}, body=_body(engine, image, way_out))
        except EngineError as error:
            _pass_if_there(error)
    raise EngineError(f"the container {NAME} does not start", fix=f"{engine.kind} logs {NAME}")


def _pass_if_there(error: EngineError) -> None:
    """Another process was faster. Podman has the word for it and not the status."""
    if not (isinstance(error, ConflictError) or (error.status and "already" in error.public)):
        raise error
    time.sleep(_AGAIN_S)


def _start(engine: Engine, container: str) -> None:
    try:
        engine.call("POST", f"/containers/{container}/start")
    except EngineError as error:
        if error.status != 304:  # it runs already
            raise


def _log_config(engine: Engine) -> dict[str, Any]:
    """The engine's own way to log, bounded. Other ways than to a file are left as they were set up."""
    if engine.kind == "podman":
        driver = engine.call("GET", "/v4.0.0/libpod/info")["host"].get("logDriver")
    else:
        driver = engine.info().get("LoggingDriver")
    return {"Type": driver, "Config": _LOG_LIMITS[driver]} if driver in _LOG_LIMITS else {}


def _body(engine: Engine, image: str, way_out: str) -> dict[str, Any]:
    return {
        "Image": image,
        "Labels": {**labels("sidecar", is_kept=True), "exeat.image": image},
        "Env": [f"EXEAT_CLIENTS={DATA}"],
        "HostConfig": {
            **hardened(way_out),
            "RestartPolicy": {"Name": "unless-stopped"},
            "LogConfig": _log_config(engine),
            "Mounts": [{"Type": "volume", "Source": NAME, "Target": DATA}],
        },
    }


def hardened(way_out: str) -> dict[str, Any]:
    """The host's side of a container with the gateway in it."""
    return {
        "NetworkMode": way_out,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": 256,
        "Memory": 512 * _MB,
        # It is on several networks: packets must not pass through it from one to another.
        "Sysctls": {"net.ipv4.ip_forward": "0", "net.ipv6.conf.all.disable_ipv6": "1"},
    }


def join(engine: Engine, container: str, network: str) -> str:
    """Connect it, unless it is; its address there."""
    for _ in range(_TRIES):
        try:
            return _address_in(engine, container, network)
        except KeyError:
            pass
        try:
            engine.raw("POST", f"/networks/{network}/connect", body={"Container": container})
        except EngineError as error:
            _pass_if_there(error)
    raise EngineError(f"{NAME} has no address on {network}", fix=f"{engine.kind} network inspect {network}")


def _address_in(engine: Engine, container: str, network: str | None) -> str:
    """Raises KeyError if it is not on the network. None: on the one that it goes out through."""
    networks = engine.call("GET", f"/containers/{container}/json")["NetworkSettings"]["Networks"] or {}
    address: str = networks[network or OUT].get("IPAddress") or ""
    if not address:
        raise KeyError(network)
    return address


# What it serves


def _set_client(engine: Engine, container: str, network: dict[str, Any], config: Any, credential: str) -> None:
    """Tell the gateway, which is in force when this returns. No value leaves this process: only its hash is told."""
    entry = {
        "networks": subnets_of(network),
        "credential": f"sha256:{hashlib.sha256(credential.encode()).hexdigest()}",
        "allow": list(config.network.rules()),
    }
    text = json.dumps({"clients": {config.name: entry}})
    _execute(engine, container, ["python3", "-I", "-m", "exeat.serve.client_change", "set", config.name, text])


def _remove_client(engine: Engine, container: str, name: str) -> None:
    """What it was allowed before is over when this returns."""
    _execute(engine, container, ["python3", "-I", "-m", "exeat.serve.client_change", "remove", name])


def _execute(engine: Engine, container: str, command: list[str]) -> None:
    body = {"Cmd": command, "AttachStdout": True, "AttachStderr": True}
    execution = engine.call("POST", f"/containers/{container}/exec", body=body)["Id"]
    said = engine.raw("POST", f"/exec/{execution}/start", body={"Detach": False, "Tty": False})
    status = engine.call("GET", f"/exec/{execution}/json").get("ExitCode")
    if status:
        text = said.decode("utf-8", "replace")
        shown = "".join(char for char in text if char.isprintable() or char == "\n").strip()
        raise EngineError(
            f"the sidecar did not accept the rules: {shown[-500:] or status}", fix=f"{engine.kind} logs {NAME}"
        )
