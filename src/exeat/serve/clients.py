"""The clients of a gateway that serves several: network, credential and policy of each.

    [clients.agent]
    networks = ["172.20.0.0/16"]
    credential = "sha256:9f86d0…"       # or the value itself, at least 20 characters
    allow = ["api.example.com"]         # and deny, hosts, private_networks, limits, as in a policy file

Networks never overlap: a client is found by its address, so one address has one client.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Network, ip_network
from typing import Final

from exeat.errors import ConfigError
from exeat.gateway.credentials import ClientCredentials
from exeat.gateway.limits import Limits, parse_limits
from exeat.policy import Policy, build_policy
from exeat.policy.document import is_json, kind, parse_data, parse_table
from exeat.policy.host import shown
from exeat.policy.positions import Places
from exeat.serve.networks import Network, Networks

MIN_CREDENTIAL: Final = 20
_HASHED: Final = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAMES: Final = "1 to 63 of a-z, 0-9, - _ and ., beginning with a letter or a digit"
_POLICY_KEYS: Final = ("allow", "deny", "hosts", "private_networks", "limits")
_KEYS: Final = ("networks", "credential", *_POLICY_KEYS)
EXPECTED: Final = "a file in TOML or JSON with [clients.NAME], or a folder of such files"
_CREDENTIAL: Final = f"sha256: and 64 hex digits, or a random value of at least {MIN_CREDENTIAL} characters"


@dataclass(frozen=True, slots=True)
class Client:
    """One client. Its name is the user of its credentials, and the sandbox on its records."""

    name: str
    networks: tuple[Network, ...]
    policy: Policy = field(repr=False)
    limits: Limits = field(repr=False)
    credentials: ClientCredentials = field(repr=False)

    @property
    def digest(self) -> str:
        """Of everything in it, so that its author can see that it is in force. Says nothing of the credential."""
        key = hashlib.sha256(b"exeat client" + self.credentials.digest).hexdigest()
        text = f"{self.name} {self.networks} {self.policy.digest} {self.limits} {key}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Together:
    """Clients that can be served on one port. Adding and removing one costs the same however many there are."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._networks = Networks()
        self._by_credential: dict[bytes, str] = {}

    @property
    def clients(self) -> Mapping[str, Client]:
        """By name."""
        return self._clients

    def add(self, client: Client, where: Callable[[], str]) -> None:
        """Raises ConfigError, which says where, if it has what another one has. Then nothing has changed."""
        digest = client.credentials.digest
        if client.name in self._clients:
            fault, expected = f"the client {client.name} is in another file too", "one of them"
        elif met := self._networks.meeting(client.networks):
            network, held = met
            fault = f"the networks of {client.name} and {held.owner} overlap: {network} and {held.network}"
            expected = "networks of its own for each client"
        elif other := self._by_credential.get(digest):
            fault, expected = f"{client.name} and {other} have the same credential", "one for each client"
        else:
            self._clients[client.name] = client
            self._networks.add(client.name, client.networks)
            self._by_credential[digest] = client.name
            return
        raise ConfigError(fault, where=where(), expected=expected)

    def remove(self, client: Client) -> None:
        del self._clients[client.name], self._by_credential[client.credentials.digest]
        self._networks.remove(client.name)


def parse_clients(text: str, filename: str) -> list[Client]:
    data, where = parse_data(text, filename, as_json=is_json(filename))
    if not isinstance(data, dict) or not isinstance(data.get("clients"), dict) or data.keys() - {"clients"}:
        raise where.fault("the file has to hold a table of clients, and nothing else", expected=EXPECTED)
    together = Together()
    for name, table in data["clients"].items():
        client = _parse_client(name, table, where.below("clients").below(name))
        together.add(client, partial(_place_of, where, name))
    return list(together.clients.values())


def _place_of(where: Places, name: str) -> str:
    return str(where("clients", name, key=True))


def _parse_client(name: str, table: object, where: Places) -> Client:
    if not _NAME.fullmatch(name):
        raise where.fault(f"{shown(name)} cannot be the name of a client", expected=_NAMES, at_key=True)
    if not isinstance(table, dict):
        raise where.fault(f"the client {name} is {kind(table)}", expected=f"a table, [clients.{name}]")
    for key in table:
        if key not in _KEYS:
            raise where.fault(f"{shown(key)} is not a key of a client", key, expected=", ".join(_KEYS), at_key=True)
    document = parse_table({key: table[key] for key in _POLICY_KEYS if key in table}, where)
    policy = build_policy(document.rules, document.hosts, document.private_networks)
    networks = _parse_networks(table, where)
    return Client(name, networks, policy, parse_limits(document.limits), _parse_credential(name, table, where))


def _parse_networks(table: Mapping[str, object], where: Places) -> tuple[Network, ...]:
    texts = table.get("networks")
    if not isinstance(texts, list) or not texts:
        raise where.fault("a client needs networks", "networks", expected='such as ["172.20.0.0/16"]')
    found: list[Network] = []
    for number, text in enumerate(texts):
        try:
            network = ip_network(text if isinstance(text, str) else "")
        except ValueError:
            what = shown(text) if isinstance(text, str) else kind(text)
            raise where.fault(f"{what} is not a network", "networks", number, expected="172.20.0.0/16") from None
        if network.version == 6 and network.overlaps(_LINK_LOCAL):
            # The same address can be on every interface, so it says nothing about whose it is.
            raise where.fault("link-local addresses name no client", "networks", number, expected="another network")
        if network.version == 6 and network.overlaps(_MAPPED):
            raise where.fault("an IPv4 address in an IPv6 one names no client", "networks", number, expected="IPv4")
        found.append(network)
    return tuple(found)


_LINK_LOCAL: Final = IPv6Network("fe80::/10")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")  # peers are looked up as the IPv4 address that they are


def _parse_credential(name: str, table: Mapping[str, object], where: Places) -> ClientCredentials:
    """Never shown, not even when it is wrong."""
    value = table.get("credential")
    if isinstance(value, str):
        if hashed := _HASHED.fullmatch(value):
            return ClientCredentials(name, bytes.fromhex(hashed[1]))
        if len(value) >= MIN_CREDENTIAL and value.isprintable() and not value.lower().startswith("sha256:"):
            return ClientCredentials(name, hashlib.sha256(value.encode()).digest())
    raise where.fault("a client needs a credential that cannot be guessed", "credential", expected=_CREDENTIAL)
