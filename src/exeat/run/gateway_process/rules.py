"""The first step of the gateway process: reads the rules, and tells the runner what they mean for the jail.

The runner waits for this. So nothing of the gateway is loaded before it.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, NamedTuple

from exeat.errors import ConfigError
from exeat.jail.messages import HostPorts, RulesRead, send
from exeat.policy import LOCALHOST, LOOPBACK, Pattern, Policy, Rule, Scope
from exeat.run.settings import RunSettings
from exeat.sources import Loaded, RuleSources

if TYPE_CHECKING:
    from exeat.run.gateway_process.stored import StoredRules


class ReadRules(NamedTuple):
    loaded: Loaded
    stored: StoredRules | None = None  # of the sandbox, if it has a name; they are part of the policy
    looks_inside: bool = False  # there are secrets, or TLS is looked into


def read_rules(settings: RunSettings, control: socket.socket) -> ReadRules:
    """Raises ConfigError for rules that cannot be used."""
    _keep_to_itself()  # from here on there may be values in memory
    sources = RuleSources(**settings.rules.as_dict(), env_secrets=os.environ.get("EXEAT_SECRETS_JSON", ""))
    loaded = sources.load()
    stored: StoredRules | None = None
    if settings.folder is not None:
        from exeat.run.gateway_process.stored import StoredRules  # for sandboxes with a name

        stored = StoredRules(settings.folder, loaded.policy)
        loaded = loaded._replace(policy=stored.policy)
    looks_inside = _is_needed(loaded)
    if not looks_inside:
        _refuse_without_use(settings.upstream_ca)
    places = tuple(loopback_places(loaded.policy))
    send(control, RulesRead(places, tuple(map(tuple, loaded.files)), loaded.warnings, looks_inside))
    return ReadRules(loaded, stored, looks_inside)


def _keep_to_itself() -> None:
    """No core dump, and no other process that looks into this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        from exeat.jail.limits.privileges import hide_memory  # Linux only

        hide_memory()


def _is_needed(loaded: Loaded) -> bool:
    """Is there anything to look into?"""
    if loaded.intercept == "none":
        return False
    return bool(loaded.secrets) or loaded.intercept == "all" or any(rule.conditional for rule in loaded.policy.rules)


def _refuse_without_use(upstream_ca: Sequence[str]) -> None:
    """An option that would have no effect is a mistake that someone should hear of."""
    if upstream_ca:
        raise ConfigError(
            "nothing is intercepted, so no server's certificate is checked here",
            where=f"--upstream-ca {upstream_ca[0]}",
            expected="secrets, rules with methods or paths, or --intercept all",
        )


def loopback_places(policy: Policy) -> list[HostPorts]:
    """Loopback addresses that the rules list: there the user means the host's servers, not the jail's own."""
    return [
        (address.packed, low, high)
        for rule in policy.rules
        if not rule.deny
        for address in _loopback_addresses(rule)
        for low, high in rule.ports
    ]


def _loopback_addresses(rule: Rule) -> tuple[IPv4Address | IPv6Address, ...]:
    if rule.pattern == Pattern(Scope.EXACT, LOCALHOST.text):
        return LOOPBACK
    network = rule.pattern.network
    is_one = network is not None and network.is_loopback and network.num_addresses == 1
    return (network.network_address,) if network is not None and is_one else ()
