"""Binds a claim's policy and secrets to a sandbox, and makes the files and variables for its container.

Two claims share nothing here except the roots for verifying servers. A value never leaves this process except
in a request to a host of its secret: the container gets placeholders and certificates.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from exeat.errors import ConfigError
from exeat.gateway.tls.interception import EITHER, HTTP1, HTTP2, Intercept, Interception
from exeat.jail.messages import HostPorts
from exeat.policy import Policy, Source
from exeat.run.gateway_process.intercepting import permitted_hosts
from exeat.run.gateway_process.rules import loopback_places
from exeat.secrets.model import Secret, SecretSpec
from exeat.secrets.setup.config import VARIABLE, combine, parse_secrets_table
from exeat.secrets.setup.values import fetch
from exeat.secrets.stream.codings import load_codings
from exeat.secrets.vault import Vault
from exeat.sources import make_policy
from exeat.trust.authority import Authority, Contexts
from exeat.trust.places import trust_variables
from exeat.trust.roots import UpstreamTrust, find_system_roots
from exeat.trust.store import combined_bundle
from exeat.values import replace

Rules = Policy | Iterable[str]
SecretSettings = Mapping[str, Mapping[str, object]]

_FOLDER: Final = "{files}"  # the harness puts the folder of its files here
_BUNDLE: Final = "ca-bundle.pem"
_OWN: Final = "ca-own.pem"


@dataclass(frozen=True, slots=True)
class Terms:
    """What was asked for at a claim, read and found usable. No value has been fetched yet."""

    policy: Policy  # the hosts of secrets are in it
    specs: tuple[SecretSpec, ...] = ()

    @property
    def looks_inside(self) -> bool:
        return bool(self.specs) or any(rule.conditional for rule in self.policy.rules)


def read_terms(rules: Rules, secrets: SecretSettings | None, to_host: Iterable[HostPorts] = ()) -> Terms:
    """Raises ConfigError. `to_host`: the loopback places of the host that the sandbox was made with."""
    if isinstance(rules, str | bytes):
        raise ConfigError("it is one text", where="policy", expected='a list of rules: ["api.example.com"]')
    policy = rules if isinstance(rules, Policy) else make_policy(rules)
    specs: tuple[SecretSpec, ...] = ()
    if secrets:
        table = {name: _as_lists(settings) for name, settings in secrets.items()}
        specs = combine([parse_secrets_table(table, _where)])
        # Behind all others: where rules say the same, the one that the caller wrote is kept.
        implied = [replace(rule, implied=True) for spec in specs for rule in spec.hosts]
        policy = policy.with_rules((*policy.rules, *implied))
    _refuse_loopback(policy, to_host)
    return Terms(policy, specs)


def _as_lists(settings: object) -> object:
    """A program may write tuples where a file has lists."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: list(each) if isinstance(each, tuple) else each for key, each in settings.items()}


def _where(*path: str | int, key: bool = False, offset: int = 0) -> Source:
    return Source("secrets" + "".join(f"[{part!r}]" for part in path))


def _refuse_loopback(policy: Policy, to_host: Iterable[HostPorts]) -> None:
    """Loopback addresses are the container's own. What else they mean is built into its network, before any claim."""
    known = set(to_host)
    for rule in policy.rules:
        if not known.issuperset(loopback_places(Policy((rule,)))):
            raise ConfigError(
                f"{rule.text}: loopback addresses are the container's own, and this rule came after it was made",
                where="policy",
                expected="the same host and port among allowed_hosts of the sandbox, or a name in the policy's hosts",
            )


class PoolTrust:
    """Whom servers are checked against: the one thing that claims share. It holds certificates and no keys."""

    def __init__(self, extra_files: Iterable[str] = ()) -> None:
        """Takes 100 ms, so it is for a thread. Raises ConfigError."""
        environ = own_environ()
        self._upstream = UpstreamTrust(tuple(extra_files), environ)
        self.roots = find_system_roots(environ)
        for protocols in (HTTP1, EITHER, HTTP2):
            self._upstream.context(protocols)  # 25 ms each, which no request is to wait for
        load_codings()

    def interception(self, secrets: tuple[Secret, ...], authority: Authority) -> Interception:
        return Interception(Intercept.NEEDED, Vault(secrets), Contexts(authority), self._upstream.context)


@dataclass(frozen=True, slots=True)
class Binding:
    """What the gateway of one claim works with, and what its container is told."""

    policy: Policy
    secrets: tuple[Secret, ...] = ()
    interception: Interception | None = None
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


async def bind(terms: Terms, trust: PoolTrust | None) -> Binding:
    """Fetch the values and make the certificates. Raises ConfigError. Takes a millisecond, unless a command is run."""
    if not terms.looks_inside:
        return Binding(terms.policy)
    assert trust is not None, "servers are checked wherever TLS is looked into"
    secrets: tuple[Secret, ...] = ()
    if all(spec.source.value is not None for spec in terms.specs):
        secrets = fetch(terms.specs, {})
    else:
        secrets = await asyncio.to_thread(fetch, terms.specs, own_environ())
    authority = Authority(permitted_hosts(terms.policy, terms.specs, Intercept.NEEDED))
    own = authority.certificate_pem
    variables = {secret.name: secret.placeholder.decode("ascii") for secret in secrets}
    return Binding(
        terms.policy,
        secrets,
        trust.interception(secrets, authority),
        trust_variables(f"{_FOLDER}/{_BUNDLE}", own=f"{_FOLDER}/{_OWN}") | variables,
        {_BUNDLE: combined_bundle(trust.roots, own), _OWN: own},
    )


def own_environ() -> dict[str, str]:
    """No command that fetches a value has any use for what holds others."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}
