"""The tightest rules for what was reached: each place by itself, with no more rights than the rule that allowed it.

Pure, but for the question whether an address is this machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from exeat.policy import (
    Address,
    AddressClass,
    Host,
    Name,
    Pattern,
    Policy,
    Rule,
    Scope,
    Source,
    Target,
    asks_whether_own,
    classify,
    decide,
    judge_address,
)
from exeat.policy.policy import IP
from exeat.policy.rule import WEB_PORTS
from exeat.values import replace

_HERE: Final = Source("learned")
_WEB: Final = frozenset(low for low, _ in WEB_PORTS)

IsOwn = Callable[[IP], bool]


@dataclass(slots=True)
class Reached:
    """A place that was let through. `rules`: those that were given and let it through; None if one is not known.

    `is_new`: without learning it would have been blocked, once at least.
    """

    host: Host
    port: int
    requests: int = 0
    sent: int = 0
    received: int = 0
    is_new: bool = False
    rules: dict[str, Rule | None] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Line:
    """One rule to be, and what is said of it."""

    rule: Rule
    ports: set[int]
    is_new: bool
    requests: int = 0
    sent: int = 0
    received: int = 0
    why: str = ""


def tightest(places: Iterable[Reached], policy: Policy, is_own: IsOwn) -> list[Line]:
    """The rules for these places under the policy that let them through, in the order of the places."""
    return _merged(_lines(places, policy, is_own))


def _lines(places: Iterable[Reached], policy: Policy, is_own: IsOwn) -> Iterator[Line]:
    for place in places:
        known = [rule for rule in place.rules.values() if rule is not None]
        patterns: list[tuple[Rule, bool]] = [(_exact(place.host, place.port, rule), False) for rule in known]
        if place.is_new:
            patterns.insert(0, (_exact(place.host, place.port, None), True))
        counts = place.requests, place.sent, place.received  # told with the first of the rules
        for rule, is_new in patterns:
            for needed, why in _with_addresses(place, rule, policy, is_own):
                yield Line(needed, {place.port}, is_new, *counts, why)
                counts = 0, 0, 0


def _exact(host: Host, port: int, given: Rule | None) -> Rule:
    """A rule for this place alone, with all that the given one says apart from its host and ports."""
    match host:
        case Name(name):
            pattern = Pattern(Scope.EXACT, name)
        case Address(ip):
            network = IPv4Network(int(ip)) if ip.version == 4 else IPv6Network(int(ip))
            pattern = Pattern(Scope.NETWORK, network=network)
    ports = ((port, port),)
    if given is None:
        return Rule(deny=False, pattern=pattern, ports=ports, source=_HERE)
    return replace(given, pattern=pattern, ports=ports, source=_HERE, force=False, proxy=False, implied=False)


def _with_addresses(place: Reached, rule: Rule, policy: Policy, is_own: IsOwn) -> Iterator[tuple[Rule, str]]:
    """The rule, with what it needs to reach inside addresses that it did reach.

    These were listed by a rule of their own, which is then needed too, or `private` stood on another rule for the host.
    """
    target = Target(place.host, place.port)
    others: list[Rule] = []
    for ip in sorted(map(ip_address, place.addresses), key=lambda each: (each.version, int(each))):
        own = asks_whether_own(policy, ip) and is_own(ip)
        if classify(ip) is AddressClass.PUBLIC and not own:
            continue
        alone = policy.with_rules([replace(rule, methods=None, paths=None)])
        if judge_address(alone, decide(alone, target), target, ip, own=own).allowed:
            continue
        if decide(policy, Target(Address(ip), place.port)).allowed:
            others.append(_exact(Address(ip), place.port, None))
        else:
            rule = replace(rule, private=True)
            break
    yield rule, ""
    for other in others:
        yield other, f"where {place.host.text} leads"


def _merged(lines: Iterable[Line]) -> list[Line]:
    """Rules that differ in their ports only become one, with both web ports or with a run of ports."""
    merged: dict[tuple[str, bool, str], Line] = {}
    for line in lines:
        key = (replace(line.rule, ports=WEB_PORTS).text, line.is_new, line.why)
        known = merged.setdefault(key, line)
        if known is not line:
            known.ports |= line.ports
            known.requests += line.requests
            known.sent += line.sent
            known.received += line.received
    return list(merged.values())


def port_groups(ports: set[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """What one rule can say of ports, for all of them and no other."""
    if ports >= _WEB:
        yield WEB_PORTS
        ports = ports - _WEB
    for port in sorted(ports):
        if port - 1 in ports:
            continue  # part of a run that began before
        last = port
        while last + 1 in ports:
            last += 1
        yield ((port, last),)


def denials(policy: Policy, places: Sequence[Reached]) -> list[str]:
    """Given denials that take something away from what is allowed here: some requests, or where a name may lead."""
    ports = {place.port for place in places}
    networks = (rule for rule in policy.rules if rule.deny and rule.pattern.scope is Scope.NETWORK)
    found = {rule.text for rule in (*networks, *policy.denies.for_any()) if any(map(rule.has_port, ports))}
    for place in places:
        if isinstance(place.host, Name):
            found |= {rule.text for rule in policy.denies.for_name(place.host.text) if rule.has_port(place.port)}
    return sorted(text.removeprefix("!") for text in found)
