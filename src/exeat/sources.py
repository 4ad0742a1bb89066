"""Where rules come from: options, files, the environment. All of them together make one policy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from exeat.errors import ConfigError
from exeat.gateway.limits import Limits, parse_limits
from exeat.policy import (
    HostMapping,
    Policy,
    PolicyDocument,
    Rule,
    Source,
    build_policy,
    parse_allowlist,
    parse_document,
    parse_host_mapping,
    parse_rule,
)

_MAX_FILE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RuleSources:
    """Everything that a user gave, unread. Kept so that a reload reads it all anew, or not at all."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    add_hosts: tuple[str, ...] = ()
    allowlist: str = ""  # PROXY_ALLOWLIST
    env_hosts: str = ""  # EXEAT_ADD_HOSTS
    base_limits: Limits = field(default_factory=Limits)

    def load(self) -> tuple[Policy, Limits]:
        """Read everything. Raises ConfigError for the first thing that cannot be used; there is no partial policy."""
        rules: list[Rule] = []
        hosts: list[HostMapping] = []
        limits = self.base_limits
        for path in self.files:
            document = load_document(path)
            rules += document.rules
            hosts += document.hosts
            limits = parse_limits(document.limits, limits)
        rules += parse_allowlist(self.allowlist)
        rules += _parse_options(self.allow, "--allow", deny=False)
        rules += _parse_options(self.deny, "--deny", deny=True)
        given = [item.strip() for item in self.env_hosts.split(",") if item.strip()]
        hosts += [parse_host_mapping(text, Source("EXEAT_ADD_HOSTS", item=n)) for n, text in enumerate(given, 1)]
        hosts += [parse_host_mapping(text, Source("--add-host", item=n)) for n, text in enumerate(self.add_hosts, 1)]
        return build_policy(rules, hosts), limits


def _parse_options(texts: Iterable[str], option: str, *, deny: bool) -> list[Rule]:
    return [parse_rule(text, Source(option, item=n), deny=deny) for n, text in enumerate(texts, 1)]


def load_document(path: str) -> PolicyDocument:
    """Read a policy file. A missing or unreadable file is an error, never an empty policy."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("not a regular file", where=path, expected="a policy in TOML or JSON")
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=path, expected="a readable policy file in TOML or JSON"
        ) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError("larger than 8 MiB", where=path, expected="a policy file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8", where=f"{path}:{line}", expected="text in UTF-8") from None
    return parse_document(text, path)


def make_policy(allow: Iterable[str] = (), deny: Iterable[str] = (), hosts: Mapping[str, str] | None = None) -> Policy:
    """A policy from rules in a program: `make_policy(["api.github.com"])`. Raises ConfigError."""
    rules = _parse_options(allow, "allow", deny=False) + _parse_options(deny, "deny", deny=True)
    mappings = [
        parse_host_mapping(f"{name}:{address}", Source(f"hosts[{name!r}]")) for name, address in (hosts or {}).items()
    ]
    return build_policy(rules, mappings)
