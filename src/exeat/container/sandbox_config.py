"""The configuration of a sandbox: its packages, its base image, its network and its limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from exeat.container.requirement import check_requirement
from exeat.errors import ConfigError
from exeat.policy import Source, parse_rule

_MIB: Final = 1 << 20
# What an image's name may be at every engine; long enough, and the label of a host too.
_NAME: Final = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*")
_MAX_NAME: Final = 63


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What a sandbox may reach: each host at each port. Without hosts it is isolated.

    A host is what a rule has before its ports: `api.example.com`, `*.example.com`, `10.0.0.0/8`. Without ports, the
    usual ones of the web.
    """

    allowed_hosts: Sequence[str] = ()
    allowed_ports: Sequence[int] = ()

    def __post_init__(self) -> None:
        _take_tuple(self, "allowed_hosts", str)
        _take_tuple(self, "allowed_ports", int)
        if self.allowed_ports and not self.allowed_hosts:
            raise ConfigError("allowed_ports without allowed_hosts allows nothing", expected="allowed_hosts=[...] too")
        for rule in self.rules():
            parse_rule(rule, Source("allowed_hosts"))

    @classmethod
    def isolated(cls) -> NetworkPolicy:
        """Nothing may be reached."""
        return cls()

    @property
    def is_isolated(self) -> bool:
        return not self.allowed_hosts

    def rules(self) -> tuple[str, ...]:
        """As `make_policy`, `--allow` and PROXY_ALLOWLIST take them."""
        for host in self.allowed_hosts:
            if " " in host or host.startswith("!"):
                raise ConfigError(f"{host!r} is not a host", expected="a host, such as api.example.com")
        ports = [f":{port}" for port in self.allowed_ports] or [""]
        return tuple(f"{host}{port}" for host in self.allowed_hosts for port in ports)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a sandbox may spend: the container as a whole, and one call of a tool."""

    memory_bytes: int = 512 * _MIB
    cpus: float = 1.0
    pids: int = 128
    tmp_bytes: int = 64 * _MIB  # of each of /tmp and the home; it counts as memory
    call_s: float = 60.0
    call_memory_bytes: int = 256 * _MIB
    output_bytes: int = _MIB  # stdout, stderr and the result of one call, each

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"the limit {name} is {value!r}", expected="a number above 0")
            if isinstance(value, float) and name not in ("cpus", "call_s"):
                raise ConfigError(f"the limit {name} is {value!r}", expected="a whole number")


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """One sandbox. `base_image` is what EXEAT_IMAGE names if it is not said, else a slim Python image."""

    name: str
    dependencies: Sequence[str] = ()
    base_image: str = ""
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def __post_init__(self) -> None:
        if len(self.name) > _MAX_NAME or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of a sandbox",
                expected=f"up to {_MAX_NAME} of a-z and 0-9, with single - _ . between them",
            )
        _take_tuple(self, "dependencies", str)
        object.__setattr__(self, "dependencies", tuple(check_requirement(each) for each in self.dependencies))
        if self.base_image.strip() != self.base_image or not self.base_image.isprintable() or " " in self.base_image:
            raise ConfigError(f"{self.base_image!r} is not the name of an image", expected="such as python:3.12-slim")


def _take_tuple(config: object, name: str, kind: type) -> None:
    """Lists are taken too. A text is a list of its letters to Python, and never meant."""
    given = getattr(config, name)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} is {given!r}", expected=f"{name}=[...]")
    values = tuple(given)
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"{name} has {value!r} in it", expected=f"only {kind.__name__} in {name}")
    object.__setattr__(config, name, values)
