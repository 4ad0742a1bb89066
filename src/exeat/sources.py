"""Where rules come from: options, files, the environment. All of them together make one policy."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.gateway.limits import Limits, parse_limits
from exeat.policy import Policy, Rule, Source, build_policy, parse_document, parse_host_mapping, parse_rule
from exeat.policy.address import Network, parse_private_network
from exeat.policy.document import PolicyDocument, SecretsTable, parse_allowlist, parse_listing
from exeat.policy.policy import HostMapping
from exeat.values import field, frozen, replace

if TYPE_CHECKING:
    from exeat.secrets.model import SecretSpec

_MAX_FILE_BYTES: Final = 8 * 1024 * 1024
T = TypeVar("T")


class Loaded(NamedTuple):
    """All that the sources say. Secrets are not fetched yet; their hosts are in the policy."""

    policy: Policy
    limits: Limits
    intercept: str = "needed"
    secrets: tuple[SecretSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[FileSettings, ...] = ()  # of each file that says something about them; paths are from its folder


@frozen
class RuleSources:
    """Everything that a user gave, unread. Kept so that a reload reads it all again, or not at all."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    add_hosts: tuple[str, ...] = ()
    private_networks: tuple[str, ...] = ()
    allowlist: str = ""  # PROXY_ALLOWLIST
    env_hosts: str = ""  # EXEAT_ADD_HOSTS
    env_private_networks: str = ""  # EXEAT_PRIVATE_NETWORKS
    secrets_files: tuple[str, ...] = ()
    env_secrets: str = field(default="", repr=False)  # EXEAT_SECRETS_JSON
    intercept: str = ""  # needed, all or none; empty: what a file says, else needed
    base_limits: Limits = field(default_factory=Limits)

    def load(self) -> Loaded:
        """Read everything. Raises ConfigError for the first thing that cannot be used; there is no partial policy."""
        rules: list[Rule] = []
        hosts: list[HostMapping] = []
        networks: list[Network] = []
        limits = self.base_limits
        intercept = ""
        tables: list[SecretsTable] = []
        files: list[FileSettings] = []
        for path in self.files:
            document = load_document(path)
            rules += document.rules
            hosts += document.hosts
            networks += document.private_networks
            limits = parse_limits(document.limits, limits)
            if document.intercept is not None:
                value, source = document.intercept
                if intercept not in ("", value):
                    raise ConfigError(
                        f"intercept is {value} here and {intercept} in another file",
                        where=str(source),
                        expected="one of them, or --intercept",
                    )
                intercept = value
            if document.secrets is not None:
                tables.append(document.secrets)
            if document.files is not None:
                folder, slash, _ = path.rpartition("/")
                files.append(document.files.within(os.path.realpath(folder + slash)))
        rules += parse_allowlist(self.allowlist)
        rules += _parse_options(self.allow, "--allow", deny=False)
        rules += _parse_options(self.deny, "--deny", deny=True)
        hosts += _parse_each(parse_host_mapping, "EXEAT_ADD_HOSTS", _items(self.env_hosts))
        hosts += _parse_each(parse_host_mapping, "--add-host", self.add_hosts)
        networks += _parse_each(parse_private_network, "EXEAT_PRIVATE_NETWORKS", _items(self.env_private_networks))
        networks += _parse_each(parse_private_network, "--private-network", self.private_networks)
        intercept = self.intercept or intercept or "needed"
        if not (tables or self.secrets_files or self.env_secrets):
            return Loaded(build_policy(rules, hosts, networks), limits, intercept, files=tuple(files))
        secrets, warnings = self._load_secrets(tables)
        if intercept == "none" and secrets:
            raise ConfigError(
                "secrets cannot be inserted where nothing is intercepted",
                where=str(secrets[0].written),
                expected='intercept = "needed", or no secrets',
            )
        # Behind all others: where rules say the same, the one that someone wrote is kept.
        rules += [replace(rule, implied=True) for secret in secrets for rule in secret.hosts]
        policy = build_policy(rules, hosts, networks)
        return Loaded(policy, limits, intercept, secrets, tuple(warnings), tuple(files))

    def _load_secrets(self, tables: list[SecretsTable]) -> tuple[tuple[SecretSpec, ...], list[str]]:
        from exeat.secrets.setup.config import VARIABLE, combine, parse_secrets, parse_secrets_table
        from exeat.secrets.setup.values import (  # for runs with secrets
            load_secrets_file,
            mode_warnings,
            source_warnings,
        )

        groups: list[tuple[SecretSpec, ...]] = []
        warnings: list[str] = []
        for table in tables:
            specs = parse_secrets_table(table.content, table.where)
            groups.append(specs)
            path = table.where().name
            warnings += mode_warnings(path, os.stat(path).st_mode, specs)
        for path in self.secrets_files:
            specs, said = load_secrets_file(path)
            groups.append(specs)
            warnings += said
        if self.env_secrets:
            groups.append(parse_secrets(self.env_secrets, VARIABLE))
        secrets = combine(groups)
        return secrets, warnings + source_warnings(secrets)


def _parse_options(texts: Iterable[str], option: str, *, deny: bool) -> list[Rule]:
    return [parse_rule(text, Source(option, item=n), deny=deny) for n, text in enumerate(texts, 1)]


def _parse_each(parse: Callable[[str, Source], T], name: str, texts: Iterable[str]) -> list[T]:
    return [parse(text, Source(name, item=n)) for n, text in enumerate(texts, 1)]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def load_document(path: str) -> PolicyDocument:
    """Read a policy file, or a list of rules in a .txt file. A missing or unreadable file is an error, never empty."""
    text = read_text(path, "a policy in TOML or JSON, or an allowlist in .txt")
    if path.lower().endswith(".txt"):
        return PolicyDocument(parse_listing(text, path), (), {})
    return parse_document(text, path)


def read_text(path: str, expected: str) -> str:
    """A file of settings. `expected` is what it should be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("not a regular file", where=path, expected=expected)
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path, expected=expected) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError("larger than 8 MiB", where=path, expected=expected)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8", where=f"{path}:{line}", expected="text in UTF-8") from None


def make_policy(
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    hosts: Mapping[str, str] | None = None,
    private_networks: Iterable[str] = (),
) -> Policy:
    """A policy from rules in a program: `make_policy(["api.github.com"])`. Raises ConfigError."""
    rules = _parse_options(allow, "allow", deny=False) + _parse_options(deny, "deny", deny=True)
    mappings = [
        parse_host_mapping(f"{name}:{address}", Source(f"hosts[{name!r}]")) for name, address in (hosts or {}).items()
    ]
    return build_policy(rules, mappings, _parse_each(parse_private_network, "private_networks", private_networks))
