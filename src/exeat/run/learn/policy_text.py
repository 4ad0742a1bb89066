"""The tightest policy for what was reached, as text that people read and exeat parses.

Texts that a command chose (hosts, its own name) must never end a comment or a string. What is written is read back
before it is returned: a rule that would not say the same is left out, and that is said.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple

from exeat.errors import ConfigError, HostError
from exeat.gateway.gates.resolve import is_own_address
from exeat.paths import plain_line
from exeat.policy import (
    LOCALHOST,
    Address,
    AddressClass,
    Name,
    Policy,
    Reason,
    Rule,
    Source,
    Target,
    canonical_host,
    classify,
    decide,
    parse_rule,
)
from exeat.policy.address import Network, declared
from exeat.policy.policy import IP
from exeat.reasons import in_words
from exeat.run.learn.rules import IsOwn, Line, Reached, denials, port_groups, tightest
from exeat.values import replace

_HERE: Final = Source("learned")
_MAX_COMMAND: Final = 200
_MAX_SHOWN: Final = 253
_MAX_REFUSED_LINES: Final = 50


Refused = tuple[str, int, str, str, str]  # host, port, reason, address, rule


@dataclass(slots=True)
class Learned:
    """What is known at the end. `left_out` requests went to places beyond the bound, `lost` events were not seen."""

    places: dict[tuple[str, int], Reached] = field(default_factory=dict)
    refused: dict[Refused, int] = field(default_factory=dict)
    refused_more: int = 0
    left_out: int = 0
    lost: int = 0


def write_policy(
    learned: Learned, policy: Policy, command: Sequence[str], form: str, is_own: IsOwn = is_own_address
) -> str:
    """`policy` was in force at the end: its denials still hold, and its mappings are kept for what was reached."""
    if form not in ("toml", "txt"):
        raise ValueError(f"no such form: {form}")
    reached: list[Reached] = []
    notes: list[str] = []
    for place in sorted(learned.places.values(), key=lambda it: (isinstance(it.host, Address), it.host.text, it.port)):
        now = decide(policy, Target(place.host, place.port))
        if now.reason is Reason.DENIED_BY_RULE:
            where = _place(place.host.text, place.port)
            notes.append(f"{where} was reached, and is denied now: {_safe(str(now.rule))}")
        else:
            reached.append(place)
    notes += [
        f"{_place(place.host.text, place.port)} was allowed by a rule that no longer exists: {_safe(text)}"
        for place in reached
        for text, rule in place.rules.items()
        if rule is None
    ]
    allows, too_long = _written(tightest(reached, policy, is_own))
    notes += [f"too long for a rule: {_safe(rule.text)}" for rule in too_long]
    hosts = {place.host.text: policy.mapped(place.host) for place in reached if isinstance(place.host, Name)}
    mapped = {name: addresses for name, addresses in hosts.items() if addresses}
    body = _Body(allows, denials(policy, reached), mapped, _used_networks(reached, policy))
    lines = body.as_toml() if form == "toml" else body.as_list()
    return "\n".join((*_heading(learned, command), *lines, *_remarks(learned, notes), ""))


def _used_networks(places: Iterable[Reached], policy: Policy) -> list[Network]:
    """The given networks in which something was reached by its name."""
    ips = {ip_address(text) for place in places if isinstance(place.host, Name) for text in place.addresses}
    used = {declared(policy.private_networks, ip) for ip in ips}
    return [network for network in policy.private_networks if network in used]


def _written(lines: Iterable[Line]) -> tuple[list[tuple[str, str]], list[Rule]]:
    """Texts and comments of the rules, and rules that cannot be written."""
    found: dict[str, str] = {}
    bad: list[Rule] = []
    for line in lines:
        comment = _comment(line)
        for ports in port_groups(line.ports):
            rule = replace(line.rule, ports=ports)
            try:
                is_same = parse_rule(rule.text, _HERE) == rule
            except ConfigError:
                is_same = False
            if is_same:
                found.setdefault(rule.text, comment)
                comment = "as above"
            else:
                bad.append(rule)
    return list(found.items()), bad


def _comment(line: Line) -> str:
    if line.why:
        return line.why
    parts = [f"{line.requests}x, {_size(line.sent)} sent, {_size(line.received)} received"]
    if not line.requests:
        parts = ["no request got through"]
    elif not (line.sent or line.received):
        parts = [f"{line.requests}x, nothing came back"]
    if line.is_new:
        parts.append("would have been blocked")
    return "; ".join(parts)


def _heading(learned: Learned, command: Sequence[str]) -> Iterator[str]:
    yield "# Learned by exeat from this command:"
    yield f"#   {plain_line(shlex.join(command), _MAX_COMMAND)}"
    yield "# It allows what the command reached, and nothing else. Read it, then use it:"
    yield "#   exeat run --policy FILE -- COMMAND"
    if learned.left_out:
        yield f"# NOT COMPLETE: {learned.left_out} requests went to more places than the {len(learned.places)} in it."
    if learned.lost:
        yield f"# NOT COMPLETE: {learned.lost} events were lost, so there may be more places."


class _Body(NamedTuple):
    """What a policy says. `allows` are rules with comments."""

    allows: Sequence[tuple[str, str]]
    denies: Sequence[str]
    hosts: dict[str, tuple[IP, ...]]
    networks: Sequence[Network]

    def as_toml(self) -> Iterator[str]:
        if self.allows:
            yield "allow = ["
            yield from (f"  {json.dumps(rule)},  # {comment}" for rule, comment in self.allows)
            yield "]"
        else:
            yield "allow = []  # nothing was reached"
        if self.denies:
            yield "deny = [  # as given"
            yield from (f"  {json.dumps(rule)}," for rule in self.denies)
            yield "]"
        if self.networks:
            yield f"private_networks = {json.dumps([str(network) for network in self.networks])}  # as given"
        if self.hosts:
            yield from ("", "[hosts]  # as given")
            for name, ips in self.hosts.items():
                yield f"{json.dumps(name)} = {json.dumps([str(ip) for ip in ips])}"

    def as_list(self) -> Iterator[str]:
        if not self.allows:
            yield "# Nothing was reached."
        yield from (f"{rule}  # {comment}" for rule, comment in self.allows)
        yield from (f"!{rule}  # as given" for rule in self.denies)
        if self.hosts:
            yield "# A list has no mappings. These were in use, and are needed with it:"
            yield from (f"#   --add-host {name}:{ip}" for name, ips in self.hosts.items() for ip in ips)
        if self.networks:
            yield "# A list has no networks either. Names in it lead to these, which have to be given with it:"
            yield from (f"#   --private-network {network}" for network in self.networks)


def _remarks(learned: Learned, notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield ""
        yield "# Not in it:"
        yield from (f"#   {note}" for note in notes)
    refused = sorted(learned.refused.items(), key=lambda item: (-item[1], item[0]))
    if not refused:
        return
    yield ""
    yield "# Refused even while learning:"
    for (host, port, reason, address, rule), count in refused[:_MAX_REFUSED_LINES]:
        yield f"#   {_place(host, port)}  {count}x  {_why(host, reason, address, rule)}"
    more = sum(count for _, count in refused[_MAX_REFUSED_LINES:]) + learned.refused_more
    if more:
        yield f"#   and {more} more; --audit FILE records all"


def _why(host: str, reason: str, address: str, rule: str) -> str:
    if reason == Reason.DENIED_BY_RULE:
        return f"denied by {_safe(rule)}"
    if reason == Reason.PRIVATE_ADDRESS and address:
        return f"leads to {_safe(address)}, which is not public"
    try:
        found = canonical_host(host)
    except HostError:
        return in_words(reason)
    if found == LOCALHOST:
        return "the host itself"
    if isinstance(found, Address) and classify(found.ip) is not AddressClass.PUBLIC:
        return f"an address that is not public ({classify(found.ip)})"
    return in_words(reason)


def _place(host: str, port: int) -> str:
    shown = _safe(host) or "(no host)"
    return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"


def _safe(text: str) -> str:
    return plain_line(text, _MAX_SHOWN)


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
