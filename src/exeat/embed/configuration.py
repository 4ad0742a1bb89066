"""The configuration of a `SandboxManager`: accepted as a whole or refused as a whole.

A setting that contradicts another is an error when the manager is made, not a surprise when a command runs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from exeat.embed.written import Given, Table, Written
from exeat.errors import ConfigError, HostError
from exeat.file_policy import FileSettings
from exeat.policy.address import parse_private_network
from exeat.policy.document import mapped_address, mapped_name
from exeat.policy.files import LAYER_SIZE, parse_layer_size
from exeat.policy.grammar import read_rule
from exeat.policy.host import Address, configured_host
from exeat.policy.options import RuleError
from exeat.policy.rule import Rule, Source
from exeat.run.settings import JAILS
from exeat.sandbox.folder import check_name

_PROXY_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_PROXY_URL = "such as http://127.0.0.1:8888; http, https, socks5 or socks5h, without a path"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_OWN_LOOPBACK = "localhost,127.0.0.1,::1"  # the jail's: no proxy leads there


@dataclass(frozen=True, slots=True)
class OuterProxy:
    """Another proxy, which decides in place of exeat.

    `url` may hold a password: it is in no `repr`, in no error, and on no command line.
    """

    url: str = field(repr=False)
    has_credentials: bool
    host: str  # canonical, without brackets
    rule: str  # the only one that the command's jail gets

    def variables(self) -> dict[str, str]:
        """What tells programs of it, in both cases."""
        values = dict.fromkeys(_PROXY_VARIABLES, self.url) | {"NO_PROXY": _OWN_LOOPBACK}
        return values | {name.lower(): value for name, value in values.items()}


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
    warnings: tuple[str, ...] = ()


def read_configuration(given: Given, *, asks: bool = False) -> Configuration:
    """Read `{"sandbox": {...}}`. `asks`: a callback decides about what no rule lists. Raises ConfigError."""
    written = Written(given)
    whole = Table(written, data=written.data)
    sandbox = whole.table("sandbox")
    whole.finish()
    if not whole.has("sandbox"):
        raise ConfigError("there is no sandbox in it", where=whole.where(), expected='{"sandbox": {...}}')
    network = sandbox.table("network")
    rules = _read_rules(network, "allowed_domains", deny=False)
    _read_rules(network, "denied_domains", deny=True)
    jail = _read_jail(sandbox)
    read = Configuration(
        enabled=sandbox.flag("enabled", True),
        allow_network=sandbox.flag("allow_network", True),
        allowed=network.texts("allowed_domains") or (),
        denied=network.texts("denied_domains") or (),
        hosts=_read_hosts(network),
        private_networks=_read_private_networks(network),
        proxy=_read_proxy(network),
        name=_read_name(sandbox),
        jail=jail,
        audit_log=_read_audit_log(sandbox),
        secrets=sandbox.file("secrets"),
        upstream_ca=sandbox.file("upstream_ca"),
        files=_read_filesystem(sandbox.table("filesystem"), jail),
    )
    network.finish()
    sandbox.finish()
    checked = _Checked(read, rules, sandbox, network, asks=asks)
    warnings = _secrets_warnings(read.secrets)
    checked.refuse_contradictions()
    return replace(read, warnings=(*warnings, *checked.warnings()))


def _read_rules(network: Table, key: str, *, deny: bool) -> list[Rule]:
    rules = []
    for number, text in enumerate(network.texts(key) or ()):
        try:
            rules.append(read_rule(text, Source(key, item=number + 1), deny=deny))
        except RuleError as fault:
            where = network.where(key, number, offset=fault.offset)
            raise ConfigError(fault.public, where=where, expected=fault.expected) from None
    return rules


def _read_hosts(network: Table) -> tuple[tuple[str, str], ...]:
    hosts = network.pairs("hosts")
    for name, address in hosts.items():
        mapped_name(name, network.where("hosts", name))
        mapped_address(address, network.where("hosts", name))
    return tuple(hosts.items())


def _read_private_networks(network: Table) -> tuple[str, ...]:
    networks = network.texts("private_networks") or ()
    for number, text in enumerate(networks):
        parse_private_network(text, Source(network.where("private_networks", number)))
    return networks


def _read_proxy(network: Table) -> OuterProxy | None:
    url = network.text("proxy")
    return parse_outer_proxy(url, network.where("proxy")) if url else None


def _read_name(sandbox: Table) -> str:
    name = sandbox.text("name")
    return check_name(name, sandbox.where("name")) if name else ""


def _read_jail(sandbox: Table) -> str:
    jail = sandbox.text("jail") or "auto"
    if jail not in JAILS:
        raise ConfigError("not a jail", where=sandbox.where("jail"), expected=", ".join(JAILS))
    return jail


def _read_audit_log(sandbox: Table) -> str:
    if sandbox.text("audit_log") == "-":
        raise ConfigError("standard output belongs to the command", where=sandbox.where("audit_log"), expected="a file")
    return sandbox.file("audit_log")


def _secrets_warnings(path: str) -> list[str]:
    """The file is read when a command runs, and now, so that a mistake in it shows. No value is fetched."""
    if not path:
        return []
    from exeat.secrets.setup.values import load_secrets_file, source_warnings  # for those who have some

    specs, warnings = load_secrets_file(path)
    return [*warnings, *source_warnings(specs)]


def _read_filesystem(table: Table, jail: str) -> FileSettings:
    """The keys are those that users of other sandboxes know; ours stand next to them."""
    mode = table.text("mode")
    if mode not in ("", "view", "host"):
        raise ConfigError("not a mode", where=table.where("mode"), expected="view or host")
    settings = FileSettings(
        mode="view" if mode == "view" else "host" if mode == "host" else None,
        write=table.paths("allow_write"),
        read_only=table.paths("deny_write"),
        hide=table.paths("deny_read"),
        show=table.paths("allow_read"),
        layer_bytes=_read_layer_size(table),
        nest=table.flag("nest", False) or None,
    )
    table.finish()
    if settings.mode == "host" and (settings.hide or settings.read_only):
        raise ConfigError(
            "mode is host: the command has all files of the host",
            where=table.where("deny_read" if settings.hide else "deny_write"),
            expected="mode: view",
        )
    if settings.needs_view and (jail in ("env", "seatbelt") or (jail == "auto" and sys.platform == "darwin")):
        name = "seatbelt" if jail == "auto" else jail
        raise ConfigError(
            f"the {name} jail does not confine files", where=table.where(), expected="another jail, or no filesystem"
        )
    return settings


def _read_layer_size(table: Table) -> int | None:
    value = table.size("layer_size")
    try:
        return None if value is None else parse_layer_size(value)
    except ValueError:
        raise ConfigError("not a layer size", where=table.where("layer_size"), expected=LAYER_SIZE) from None


def parse_outer_proxy(text: str, where: str) -> OuterProxy:
    """Read a proxy's URL. Raises ConfigError, which never shows the text."""
    try:
        parts = urlsplit(text)
        port = parts.port or _PROXY_PORTS.get(parts.scheme, 0)
        named = parts.hostname or ""
    except ValueError:
        raise ConfigError("not a URL", where=where, expected=_PROXY_URL) from None
    if parts.scheme not in _PROXY_PORTS or not named or any(not char.isprintable() or char == " " for char in text):
        raise ConfigError("not the URL of a proxy", where=where, expected=_PROXY_URL)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError("a proxy has no path", where=where, expected=_PROXY_URL)
    try:
        # In the jail localhost is the jail's own; an address that a rule lists is the host's.
        host = configured_host("127.0.0.1" if named == "localhost" else named)
    except HostError as error:
        raise ConfigError(error.public, where=where, expected=_PROXY_URL) from None
    credentials = parts.netloc.rpartition("@")[0]
    place = f"{host.authority}:{port}"
    # A configured proxy means the one that the name leads to, and most are internal.
    private = "" if isinstance(host, Address) else " private"
    return OuterProxy(
        url=f"{parts.scheme}://{credentials}{'@' if credentials else ''}{place}",
        has_credentials=bool(credentials),
        host=str(host),
        rule=f"{place}{private} proxy",
    )


@dataclass(frozen=True, slots=True)
class _Checked:
    """A configuration, and what is needed to say where it contradicts itself."""

    read: Configuration
    rules: list[Rule]  # of `allowed_domains`; it may have denials as well
    sandbox: Table
    network: Table
    asks: bool

    @property
    def allows(self) -> bool:
        """May anything get out, by whatever way?"""
        read = self.read
        allowed = any(not rule.deny for rule in self.rules)
        return allowed or bool(read.name or read.secrets or read.proxy or self.asks)

    def refuse_contradictions(self) -> None:
        read, network, sandbox = self.read, self.network, self.sandbox
        if not read.allow_network:
            self._refuse_without_network()
        if read.proxy is not None:
            self._refuse_beside_proxy(read.proxy)
        _refuse(
            bool(read.denied) and not self.allows,
            network.where("denied_domains"),
            "it denies nothing, because nothing is allowed",
            "allowed_domains as well",
        )
        _refuse(
            read.name and read.audit_log,
            sandbox.where("audit_log"),
            "a named sandbox has its own log",
            f"name or audit_log; exeat proxy log --name {read.name}",
        )
        _refuse(
            read.upstream_ca and not read.secrets and not any(rule.conditional for rule in self.rules),
            sandbox.where("upstream_ca"),
            "no TLS is looked into, so no server's certificate is checked here",
            "secrets, or rules with methods or paths",
        )

    def _refuse_without_network(self) -> None:
        read, network, sandbox = self.read, self.network, self.sandbox
        off = "sandbox.allow_network is false, so nothing may get out"
        for key, given in (
            ("allowed_domains", self.rules),
            ("proxy", read.proxy),
            ("hosts", read.hosts),
            ("private_networks", read.private_networks),
        ):
            _refuse(given, network.where(key), off, f"allow_network: true, or no {key}")
        for key, is_given, why, instead in (
            ("secrets", bool(read.secrets), "the hosts of secrets may be reached", "allow_network: true"),
            ("name", bool(read.name), "a named sandbox has a list", "allow_network: true"),
            ("jail", read.jail == "env", "env only sets variables", "auto, or another jail"),
            ("allow_network", self.asks, "there is nothing to ask about", "allow_network: true, or no ask"),
        ):
            _refuse(is_given, sandbox.where(key), f"{off}, and {why}", instead)

    def _refuse_beside_proxy(self, proxy: OuterProxy) -> None:
        """A list that is there and has no effect would be worse than none."""
        read, network, sandbox = self.read, self.network, self.sandbox
        decides = "the proxy decides what is reached, and exeat does not see it"
        for key, is_given in (
            ("allowed_domains", network.has("allowed_domains")),
            ("denied_domains", bool(read.denied)),
            ("private_networks", bool(read.private_networks)),
        ):
            _refuse(is_given, network.where(key), decides, f"{key} or proxy")
        for name, _ in read.hosts:
            where = network.where("hosts", name)
            _refuse(mapped_name(name, where) != proxy.host, where, decides, "no name but the proxy's own")
        _refuse(read.secrets, sandbox.where("secrets"), decides, "secrets or proxy")
        _refuse(read.name, sandbox.where("name"), f"{decides}; a named sandbox has a list", "name or proxy")
        _refuse(self.asks, network.where("proxy"), f"{decides}, so there is nothing to ask", "proxy or ask")
        is_seatbelt = read.jail == "seatbelt" or (read.jail == "auto" and sys.platform == "darwin")
        _refuse(is_seatbelt, network.where("proxy"), "the seatbelt jail leaves no way to it", "no proxy")

    def warnings(self) -> list[str]:
        found = []
        if not self.read.enabled:
            found.append("sandbox.enabled is false: commands run without a sandbox, and reach everything")
        elif self.read.jail == "env":
            found.append(
                "sandbox.jail is env: not a boundary; a program that ignores proxy variables reaches everything, and "
                "files are not confined"
            )
        if self.read.allow_network and not self.allows:
            found.append("sandbox.network.allowed_domains has no rule, so nothing is allowed")
        return found


def _refuse(is_wrong: object, where: str, public: str, expected: str) -> None:
    if is_wrong:
        raise ConfigError(public, where=where, expected=expected)
