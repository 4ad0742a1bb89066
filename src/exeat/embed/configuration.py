"""What a `SandboxManager` was told to do, read whole or refused whole.

A setting that contradicts another is an error when the manager is made, not a surprise when a command runs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NoReturn

from exeat.embed.filesystem import read_filesystem
from exeat.embed.outer_proxy import OuterProxy, parse_outer_proxy
from exeat.embed.written import Given, Table, Written
from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.policy.address import parse_private_network
from exeat.policy.document import mapped_address, mapped_name
from exeat.policy.grammar import read_rule
from exeat.policy.options import RuleError
from exeat.policy.rule import Rule, Source
from exeat.run.settings import JAILS
from exeat.sandbox.folder import check_name


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a sandbox. Rules are kept as they were written; they have been read and are good."""

    enabled: bool
    allow_network: bool
    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    hosts: tuple[tuple[str, str], ...]
    private_networks: tuple[str, ...]
    proxy: OuterProxy | None
    audit_log: str
    name: str
    jail: str
    secrets: str
    upstream_ca: str
    files: FileSettings
    warnings: tuple[str, ...]


def read_configuration(given: Given, *, asks: bool = False) -> Configuration:
    """Read `{"sandbox": {...}}`. `asks`: somebody decides about what no rule lists. Raises ConfigError."""
    written = Written(given)
    whole = Table(written, data=written.data)
    sandbox = whole.table("sandbox")
    whole.finish()
    if not whole.has("sandbox"):
        raise ConfigError("there is no sandbox in it", where=whole.where(), expected='{"sandbox": {...}}')
    return _Reader(sandbox, asks=asks).read()


class _Reader:
    def __init__(self, sandbox: Table, *, asks: bool) -> None:
        self._sandbox = sandbox
        self._network = sandbox.table("network")
        self._asks = asks

    def read(self) -> Configuration:
        sandbox, network = self._sandbox, self._network
        enabled = sandbox.flag("enabled", True)
        self._allow_network = sandbox.flag("allow_network", True)
        allowed = network.texts("allowed_domains")
        denied = network.texts("denied_domains") or ()
        self._rules = self._read_rules("allowed_domains", allowed or (), deny=False)
        self._read_rules("denied_domains", denied, deny=True)
        self._lists = allowed is not None
        self._denies = bool(denied)
        hosts = network.pairs("hosts")
        self._hosts = {mapped_name(name, network.where("hosts", name)): name for name in hosts}
        for name, address in hosts.items():
            mapped_address(address, network.where("hosts", name))
        self._networks = network.texts("private_networks") or ()
        for number, text in enumerate(self._networks):
            parse_private_network(text, Source(network.where("private_networks", number)))
        proxy = network.text("proxy")
        self._proxy = parse_outer_proxy(proxy, network.where("proxy")) if proxy else None
        self._name = sandbox.text("name")
        if self._name:
            check_name(self._name, sandbox.where("name"))
        self._jail = self._read_jail()
        self._audit_log = self._read_audit_log()
        self._secrets = sandbox.file("secrets")
        self._upstream_ca = sandbox.file("upstream_ca")
        files = read_filesystem(sandbox.table("filesystem"), self._jail)
        network.finish()
        sandbox.finish()
        warnings = self._check_secrets()
        self._refuse_contradictions()
        return Configuration(
            enabled=enabled,
            allow_network=self._allow_network,
            allowed=allowed or (),
            denied=denied,
            hosts=tuple(hosts.items()),
            private_networks=self._networks,
            proxy=self._proxy,
            audit_log=self._audit_log,
            name=self._name,
            jail=self._jail,
            secrets=self._secrets,
            upstream_ca=self._upstream_ca,
            files=files,
            warnings=(*warnings, *self._warnings(enabled)),
        )

    def _read_rules(self, key: str, texts: tuple[str, ...], *, deny: bool) -> list[Rule]:
        rules = []
        for number, text in enumerate(texts):
            try:
                rules.append(read_rule(text, Source(key, item=number + 1), deny=deny))
            except RuleError as fault:
                where = self._network.where(key, number, offset=fault.offset)
                raise ConfigError(fault.public, where=where, expected=fault.expected) from None
        return rules

    def _read_jail(self) -> str:
        jail = self._sandbox.text("jail") or "auto"
        if jail not in JAILS:
            raise ConfigError("not a jail", where=self._sandbox.where("jail"), expected=", ".join(JAILS))
        return jail

    def _read_audit_log(self) -> str:
        if self._sandbox.text("audit_log") == "-":
            raise ConfigError(
                "standard output is the command's", where=self._sandbox.where("audit_log"), expected="a file"
            )
        return self._sandbox.file("audit_log")

    def _check_secrets(self) -> list[str]:
        """The file is read when a command runs, and now, so that a mistake in it shows. No value is fetched."""
        if not self._secrets:
            return []
        from exeat.secrets.setup.values import load_secrets_file, source_warnings  # noqa: PLC0415 - for those who have some

        specs, warnings = load_secrets_file(self._secrets)
        return [*warnings, *source_warnings(specs)]

    @property
    def _allows(self) -> bool:
        """May anything get out, by whatever way?"""
        allowed = any(not rule.deny for rule in self._rules)
        return allowed or bool(self._name or self._secrets or self._proxy or self._asks)

    def _refuse_contradictions(self) -> None:
        network, sandbox = self._network, self._sandbox
        if not self._allow_network:
            self._refuse_without_network()
        if self._proxy is not None:
            self._refuse_beside_proxy(self._proxy)
        if self._denies and not self._allows:
            _fail(network.where("denied_domains"), "nothing is allowed that it could deny", "allowed_domains as well")
        if self._name and self._audit_log:
            _fail(
                sandbox.where("audit_log"),
                "a sandbox with a name has a log of its own",
                f"name or audit_log; exeat proxy log --name {self._name}",
            )
        if self._upstream_ca and not self._secrets and not any(rule.conditional for rule in self._rules):
            _fail(
                sandbox.where("upstream_ca"),
                "no TLS is looked into, so no server's certificate is checked here",
                "secrets, or rules with methods or paths",
            )

    def _refuse_without_network(self) -> None:
        network, sandbox = self._network, self._sandbox
        off = "sandbox.allow_network is false, so nothing is to get out"
        if self._rules:
            _fail(network.where("allowed_domains"), off, "allow_network: true, or no allowed_domains")
        if self._proxy is not None:
            _fail(network.where("proxy"), off, "allow_network: true, or no proxy")
        if self._hosts:
            _fail(network.where("hosts"), off, "allow_network: true, or no hosts")
        if self._networks:
            _fail(network.where("private_networks"), off, "allow_network: true, or no private_networks")
        if self._secrets:
            _fail(sandbox.where("secrets"), f"{off}, and the hosts of secrets may be reached", "allow_network: true")
        if self._name:
            _fail(sandbox.where("name"), f"{off}, and a sandbox with a name has a list", "allow_network: true")
        if self._jail == "env":
            _fail(sandbox.where("jail"), f"{off}, and env only sets variables", "auto, or another jail")
        if self._asks:
            _fail(sandbox.where("allow_network"), f"{off}, and nobody is asked", "allow_network: true, or no ask")

    def _refuse_beside_proxy(self, proxy: OuterProxy) -> None:
        """A list that is there and that nobody goes by would be worse than none."""
        network, sandbox = self._network, self._sandbox
        decides = "the proxy decides what is reached, and exeat does not see it"
        if self._lists:
            _fail(network.where("allowed_domains"), decides, "allowed_domains or proxy")
        if self._denies:
            _fail(network.where("denied_domains"), decides, "denied_domains or proxy")
        if self._networks:
            _fail(network.where("private_networks"), decides, "private_networks or proxy")
        for canonical, name in self._hosts.items():
            if canonical != proxy.host:
                _fail(network.where("hosts", name), decides, "no name but the proxy's own")
        if self._secrets:
            _fail(sandbox.where("secrets"), decides, "secrets or proxy")
        if self._name:
            _fail(sandbox.where("name"), f"{decides}; a sandbox with a name has a list", "name or proxy")
        if self._asks:
            _fail(network.where("proxy"), f"{decides}, so nobody can be asked", "proxy or ask")
        if self._jail == "seatbelt" or (self._jail == "auto" and sys.platform == "darwin"):
            _fail(network.where("proxy"), "the seatbelt jail leaves no way to it", "no proxy")

    def _warnings(self, enabled: bool) -> list[str]:
        found = []
        if not enabled:
            found.append("sandbox.enabled is false: commands run without a sandbox, and reach everything")
        elif self._jail == "env":
            found.append(
                "sandbox.jail is env: not a boundary; a program that ignores proxy variables reaches everything, and "
                "files are not confined"
            )
        if self._allow_network and not self._allows:
            found.append("sandbox.network.allowed_domains has no rule, so nothing is allowed")
        return found


def _fail(where: str, public: str, expected: str) -> NoReturn:
    raise ConfigError(public, where=where, expected=expected)
