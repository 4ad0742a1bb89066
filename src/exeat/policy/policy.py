"""A policy is data: rules and host mappings, frozen, hashable, with a digest. Nothing here reads or decides.

The index makes the cost of a lookup independent of the number of rules. It is derived, and so no part of
equality, hash or digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address

from exeat.policy.address import Network, carried_ipv4
from exeat.policy.host import LOOPBACK, Name, unmapped
from exeat.policy.rule import Rule, Scope
from exeat.values import field, frozen

IP = IPv4Address | IPv6Address
HostMapping = tuple[str, tuple[IP, ...]]


class RuleIndex:
    """Rules of one verdict, found by host. Within one scope the narrower rule comes first, then by text,
    so that the order in which rules were written never matters."""

    __slots__ = ("_any", "_below", "_conditional_networks", "_names", "_networks")

    def __init__(self, rules: Iterable[Rule]) -> None:
        names: dict[str, list[Rule]] = {}
        below: dict[str, list[Rule]] = {}
        networks: dict[tuple[int, int], dict[int, list[Rule]]] = {}
        anywhere: list[Rule] = []
        conditional_networks: list[Rule] = []
        for rule in rules:
            pattern = rule.pattern
            match pattern.scope:
                case Scope.EXACT:
                    names.setdefault(pattern.name, []).append(rule)
                case Scope.BELOW:
                    below.setdefault(pattern.name, []).append(rule)
                case Scope.WITHIN:
                    names.setdefault(pattern.name, []).append(rule)
                    below.setdefault(pattern.name, []).append(rule)
                case Scope.ANY:
                    anywhere.append(rule)
                case Scope.NETWORK:
                    network = pattern.network
                    assert network is not None
                    shift = network.max_prefixlen - network.prefixlen
                    table = networks.setdefault((network.version, shift), {})
                    table.setdefault(int(network.network_address) >> shift, []).append(rule)
                    if rule.conditional:
                        conditional_networks.append(rule)
        for bucket in (*names.values(), *below.values(), anywhere):
            if len(bucket) > 1:
                bucket.sort(key=_narrowest_first)
        self._names = names
        self._below = below
        self._any = anywhere
        self._conditional_networks = conditional_networks
        # Longest prefix (smallest shift) first.
        self._networks: dict[int, list[tuple[int, dict[int, list[Rule]]]]] = {4: [], 6: []}
        for (version, shift), table in sorted(networks.items(), key=lambda item: item[0]):
            for bucket in table.values():
                bucket.sort(key=_narrowest_first)
            self._networks[version].append((shift, table))

    def for_name(self, name: str) -> Iterator[Rule]:
        """Every rule whose pattern covers the name, most specific first."""
        yield from self._names.get(name, ())
        if self._below:
            rest = name
            while rest:
                rest = rest.partition(".")[2]
                if rest in self._below:
                    yield from self._below[rest]
        yield from self._any

    def for_address(self, ip: IP) -> Iterator[Rule]:
        """Every rule that lists the address or a network around it, smallest network first."""
        number = int(ip)
        for shift, table in self._networks[ip.version]:
            if (number >> shift) in table:
                yield from table[number >> shift]

    def for_any(self) -> Iterator[Rule]:
        """The rules that say `*`."""
        return iter(self._any)

    def conditional_networks(self) -> Iterator[Rule]:
        """The rules for addresses that look at methods or paths."""
        return iter(self._conditional_networks)


def _narrowest_first(rule: Rule) -> tuple[bool, int, str]:
    exact = rule.pattern.scope is not Scope.EXACT
    return exact, sum(high - low + 1 for low, high in rule.ports), rule.text


@frozen
class Policy:
    """What may be reached. Without rules, nothing may.

    `hosts` maps canonical names to the addresses the user gave for them (`--add-host`). `private_networks` are internal
    networks to which names may lead.
    """

    rules: tuple[Rule, ...] = ()
    hosts: tuple[HostMapping, ...] = ()
    private_networks: tuple[Network, ...] = ()
    allows: RuleIndex = field(init=False, repr=False, compare=False)
    denies: RuleIndex = field(init=False, repr=False, compare=False)
    _mapped: dict[str, tuple[IP, ...]] = field(init=False, repr=False, compare=False)
    _digest: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "allows", RuleIndex(rule for rule in self.rules if not rule.deny))
        object.__setattr__(self, "denies", RuleIndex(rule for rule in self.rules if rule.deny))
        object.__setattr__(self, "_mapped", dict(_merged(self.hosts)))

    @property
    def digest(self) -> str:
        """32 hex digits that name this policy in the audit log, whatever order or file its rules came from."""
        if not self._digest:
            object.__setattr__(self, "_digest", self._compute_digest())
        return self._digest

    def _compute_digest(self) -> str:
        import hashlib
        import json

        hosts = {name: sorted({str(ip) for ip in ips}) for name, ips in self._mapped.items()}
        content: dict[str, object] = {"rules": sorted({rule.text for rule in self.rules}), "hosts": hosts}
        if self.private_networks:
            content["private_networks"] = sorted({str(network) for network in self.private_networks})
        data = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(data.encode("ascii")).hexdigest()[:32]

    def mapped(self, name: Name) -> tuple[IP, ...]:
        """The addresses the user gave for this very name; () means that it is to be resolved."""
        return self._mapped.get(name.text, ())

    def with_rules(self, rules: Iterable[Rule]) -> Policy:
        """The same with other rules."""
        return build_policy(rules, self.hosts, self.private_networks)


def build_policy(
    rules: Iterable[Rule], hosts: Iterable[HostMapping] = (), private_networks: Iterable[Network] = ()
) -> Policy:
    """A policy without repeated rules and with one entry per mapped name. The first of equal rules is kept."""
    return Policy(tuple(dict.fromkeys(rules)), _merged(hosts), tuple(dict.fromkeys(private_networks)))


def _merged(hosts: Iterable[HostMapping]) -> tuple[HostMapping, ...]:
    merged: dict[str, dict[IP, None]] = {}
    for name, ips in hosts:
        merged.setdefault(name, {}).update((unmapped(ip), None) for ip in ips)
    return tuple((name, tuple(ips)) for name, ips in merged.items())


def address_forms(ip: IP) -> tuple[IP, ...]:
    """The address and every other one it may lead to. A deny rule for any of them denies it."""
    ip = unmapped(ip)
    if ip.is_unspecified:
        return ip, LOOPBACK[ip.version == 6]  # connecting to 0.0.0.0 connects to 127.0.0.1
    return (ip,) if isinstance(ip, IPv4Address) else (ip, *carried_ipv4(ip))
