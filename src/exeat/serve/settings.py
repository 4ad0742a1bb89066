"""The settings of `exeat serve`: environment first, options on top, everything checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from exeat.audit.rotation import DEFAULT_ROTATION, Rotation, rotation_from
from exeat.errors import ConfigError, HostError
from exeat.policy.host import parse_port
from exeat.sandbox.folder import check_name
from exeat.sources import RuleSources

DEFAULT_PORT: Final = 8888
DEFAULT_BIND: Final = "127.0.0.1"
MAX_WORKERS: Final = 64


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """A Unix socket's path, or a host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    sources: RuleSources
    port: int = DEFAULT_PORT
    bind: str = DEFAULT_BIND
    audit: str = "-"
    audit_rotation: Rotation = DEFAULT_ROTATION
    admin: AdminAddress | None = None
    workers: int = 1
    sandbox: str = ""
    credentials: tuple[str, str] | None = None
    clients: str = ""  # a file of clients, or a folder of such files


def read_port(text: str, where: str) -> int:
    """A port to listen on; 0 picks a free one."""
    if text == "0":
        return 0
    try:
        return parse_port(text)
    except HostError:
        raise ConfigError(f'bad port "{text}"', where=where, expected="a number from 0 to 65535") from None


def read_bind(text: str, where: str) -> str:
    """An address to listen on. Not a name, and not nothing: both could mean more addresses than were meant."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        raise ConfigError(
            f"bad address to listen on {text!r}", where=where, expected="an IP address, such as 127.0.0.1 or ::"
        ) from None


def read_admin(text: str, where: str) -> AdminAddress | None:
    if not text:
        return None
    if "/" in text:
        return AdminAddress(path=text)
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ConfigError(f'bad admin address "{text}"', where=where, expected="a socket path with a /, or host:port")
    return AdminAddress(host=host.strip("[]"), port=read_port(port, where))


def read_workers(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]?", text) or int(text) > MAX_WORKERS:
        raise ConfigError(f'bad number of workers "{text}"', where=where, expected=f"a number from 1 to {MAX_WORKERS}")
    return int(text)


def read_credentials(text: str, where: str) -> tuple[str, str] | None:
    """`user:password`. The value is never shown, not even when it is wrong."""
    if not text:
        return None
    user, colon, password = text.partition(":")
    if not colon or not user or not password or not text.isprintable():
        raise ConfigError("bad credentials", where=where, expected="user:password, without control characters")
    return user, password


def read_sandbox(text: str, where: str) -> str:
    """A sandbox's name goes into every record: the same short form everywhere."""
    return check_name(text, where) if text else ""


def settings_from(options: Mapping[str, str | None], sources: RuleSources, environ: Mapping[str, str]) -> ServeSettings:
    """Join options and environment. An option that was given wins over its variable."""

    def value(option: str, variable: str, default: str) -> tuple[str, str]:
        given = options.get(option)
        if given is not None:
            return given, f"--{option}"
        return environ.get(variable, default) or default, variable

    workers = read_workers(*value("workers", "EXEAT_WORKERS", "1"))
    settings = ServeSettings(
        sources=sources,
        port=read_port(*value("port", "PROXY_PORT", str(DEFAULT_PORT))),
        bind=read_bind(*value("bind", "EXEAT_BIND", DEFAULT_BIND)),
        audit=value("audit", "EXEAT_AUDIT", "-")[0],
        audit_rotation=rotation_from(environ),
        admin=read_admin(*value("admin", "EXEAT_ADMIN", "")),
        workers=workers,
        sandbox=read_sandbox(*value("sandbox", "EXEAT_SANDBOX", "")),
        credentials=read_credentials(environ.get("EXEAT_PROXY_AUTH", ""), "EXEAT_PROXY_AUTH"),
        clients=value("clients", "EXEAT_CLIENTS", "")[0],
    )
    if settings.clients:
        _refuse_rules_for_all(settings)
    return settings


def _refuse_rules_for_all(settings: ServeSettings) -> None:
    """Each client has its own, and nothing but its own. So it must be plain that there are no others."""
    others = {
        "rules": settings.sources != RuleSources(base_limits=settings.sources.base_limits),
        "EXEAT_PROXY_AUTH": settings.credentials is not None,
        "--sandbox": bool(settings.sandbox),
    }
    for name, is_given in others.items():
        if is_given:
            raise ConfigError(
                f"{name} cannot be given for all clients together",
                where="--clients",
                expected="rules, networks and a credential for each client, in its file",
            )
