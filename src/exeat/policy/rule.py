"""A rule, once parsed: a value with one canonical text. Parsing is in grammar.py."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from exeat.values import field, frozen

Ports = tuple[tuple[int, int], ...]

WEB_PORTS: Ports = ((80, 80), (443, 443))  # what a rule without ports means
ALL_PORTS: Ports = ((1, 65535),)
# The options without a value, and the field that each sets, in the order of the canonical text.
FLAGS = {
    "private": "private",
    "allow_sni_mismatch": "allow_sni_mismatch",
    "force": "force",
    "no-intercept": "no_intercept",
    "proxy": "proxy",
}


class Source(NamedTuple):
    """Where a setting was written, so that a verdict can be traced to the line that gave it.

    `item` counts from 1 in settings that have no lines: `--allow #2`, `PROXY_ALLOWLIST item 2`.
    """

    name: str
    line: int | None = None
    column: int | None = None
    item: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.name}:{self.line}" + (f":{self.column}" if self.column is not None else "")
        if self.item is not None:
            return f"{self.name} {'#' if self.name.startswith('-') else 'item '}{self.item}"
        return self.name

    def at(self, offset: int) -> str:
        """The place `offset` characters into the text that starts here."""
        if self.line is not None:
            column = None if self.column is None else self.column + offset
            return str(Source(self.name, self.line, column))
        return f"{self}, character {offset + 1}"


class Scope(StrEnum):
    """Which hosts a pattern covers."""

    EXACT = "exact"  # good.test
    BELOW = "below"  # *.good.test: any subdomain at any depth, not good.test
    WITHIN = "within"  # .good.test: good.test and its subdomains
    ANY = "any"  # *: any name
    NETWORK = "network"  # 10.0.0.0/8, [::1]: addresses, and never a name that resolves to one


class Pattern(NamedTuple):
    """The host part of a rule. `name` is canonical and has no star; `network` is set for NETWORK only."""

    scope: Scope
    name: str = ""
    network: IPv4Network | IPv6Network | None = None

    @property
    def text(self) -> str:
        match self.scope:
            case Scope.EXACT:
                return self.name
            case Scope.BELOW:
                return f"*.{self.name}"
            case Scope.WITHIN:
                return f".{self.name}"
            case Scope.ANY:
                return "*"
            case Scope.NETWORK:
                return _network_text(self.network)


def _network_text(network: IPv4Network | IPv6Network | None) -> str:
    assert network is not None, "a NETWORK pattern has a network"
    single = network.prefixlen == network.max_prefixlen
    text = network.network_address.compressed if single else network.compressed
    return f"[{text}]" if network.version == 6 else text


@frozen
class Rule:
    """One rule. Its canonical text says everything but where it was written, so the text is its identity.

    `methods` and `paths` are None when the rule does not ask; they are never empty.
    """

    deny: bool = field(compare=False)
    pattern: Pattern = field(compare=False)
    ports: Ports = field(compare=False)
    source: Source = field(compare=False)
    private: bool = field(default=False, compare=False)
    methods: frozenset[str] | None = field(default=None, compare=False)
    paths: tuple[str, ...] | None = field(default=None, compare=False)
    max_upload: int | None = field(default=None, compare=False)
    allow_sni_mismatch: bool = field(default=False, compare=False)
    force: bool = field(default=False, compare=False)
    no_intercept: bool = field(default=False, compare=False)
    # What is there is a proxy, and it decides: requests to it pass unread, whatever host they name.
    proxy: bool = field(default=False, compare=False)
    # Follows from a secret that may go there. A written rule for the same place counts instead.
    implied: bool = field(default=False, compare=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        head = f"{'!' if self.deny else ''}{self.pattern.text}{ports_text(self.ports)}"
        object.__setattr__(self, "text", " ".join((head, *self._options())))

    def _options(self) -> list[str]:
        words = [word for word, name in FLAGS.items() if getattr(self, name)]
        if self.methods is not None:
            words.append(f"methods={'|'.join(sorted(self.methods))}")
        if self.paths is not None:
            words.append(f"paths={'|'.join(sorted(set(self.paths)))}")
        if self.max_upload is not None:
            words.append(f"max_upload={self.max_upload}")
        return words

    @property
    def conditional(self) -> bool:
        """Whether the rule judges requests, so that a tunnel cannot show that it fits."""
        return self.methods is not None or self.paths is not None

    def has_port(self, port: int) -> bool:
        return any(low <= port <= high for low, high in self.ports)

    def __str__(self) -> str:
        return self.text


def ports_text(ports: Ports) -> str:
    """`:22`, `:8000-8010`, `:*`, or nothing for the web ports."""
    if ports == WEB_PORTS:
        return ""
    if ports == ALL_PORTS:
        return ":*"
    return ":" + ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ports)


def plain_rule(deny: bool, pattern: Pattern, ports: Ports, source: Source, text: str) -> Rule:
    """A rule without options whose canonical text is known already: 0.9 µs, where working it out takes 2.3."""
    rule = _new(Rule)
    _set_deny(rule, deny)
    _set_pattern(rule, pattern)
    _set_ports(rule, ports)
    _set_source(rule, source)
    _set_text(rule, text)
    _set_private(rule, False)
    _set_methods(rule, None)
    _set_paths(rule, None)
    _set_max_upload(rule, None)
    _set_allow_sni_mismatch(rule, False)
    _set_force(rule, False)
    _set_no_intercept(rule, False)
    _set_proxy(rule, False)
    _set_implied(rule, False)
    return rule


_new = object.__new__
(
    _set_deny, _set_pattern, _set_ports, _set_source, _set_private, _set_methods, _set_paths, _set_max_upload,
    _set_allow_sni_mismatch, _set_force, _set_no_intercept, _set_proxy, _set_implied, _set_text,
) = (vars(Rule)[name].__set__ for name in vars(Rule)["__slots__"])  # fmt: skip


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether every host of `narrow` is a host of `wide`. Names and addresses are different hosts."""
    if wide.scope is Scope.NETWORK or narrow.scope is Scope.NETWORK:
        outer, inner = wide.network, narrow.network
        if outer is None or inner is None or outer.version != inner.version or outer.prefixlen > inner.prefixlen:
            return False
        shift = outer.max_prefixlen - outer.prefixlen
        return int(outer.network_address) >> shift == int(inner.network_address) >> shift
    if wide.scope is Scope.ANY or narrow.scope is Scope.ANY:
        return wide.scope is Scope.ANY
    if wide.scope is Scope.EXACT:
        return narrow.scope is Scope.EXACT and wide.name == narrow.name
    if wide.name == narrow.name:
        return wide.scope is Scope.WITHIN or narrow.scope is Scope.BELOW
    return narrow.name.endswith(f".{wide.name}")


def meet(one: Pattern, other: Pattern) -> bool:
    """Whether any host belongs to both. Patterns never overlap in part: one is inside the other, or they are apart."""
    return covers(one, other) or covers(other, one)


def ports_cover(wide: Ports, narrow: Ports) -> bool:
    """Whether every port of `narrow` is one of `wide`. Ranges of one rule do not touch."""
    return all(any(low <= first and last <= high for low, high in wide) for first, last in narrow)


def ports_meet(one: Ports, other: Ports) -> bool:
    return any(low <= last and first <= high for low, high in one for first, last in other)


def ports_without(wide: Ports, narrow: Ports) -> Ports:
    """The ports of `wide` that are none of `narrow`."""
    left = list(wide)
    for first, last in narrow:
        parts = (part for low, high in left for part in ((low, min(high, first - 1)), (max(low, last + 1), high)))
        left = [(low, high) for low, high in parts if low <= high]
    return tuple(left)


def denial_covers(deny: Pattern, other: Pattern) -> bool:
    """Whether a denial of the one is about every host of the other. `!*` is about addresses, too."""
    return deny.scope is Scope.ANY or covers(deny, other)


def denial_meets(deny: Pattern, other: Pattern) -> bool:
    """Whether a denial of the one may stand against what a rule for the other allows.

    A denied address is denied as what a name leads to, and as what an IPv6 address carries.
    """
    if deny.scope is Scope.ANY:
        return True
    if deny.network is None:
        return meet(deny, other)
    if other.network is None:
        return True
    return meet(deny, other) or (deny.network.version == 4 and other.network.version == 6)


def allows_all_of(rule: Rule, other: Rule) -> bool:
    """Whether an allow rule makes another one needless: what that lets through, this lets through in the same way."""
    return (
        covers(rule.pattern, other.pattern)
        and ports_cover(rule.ports, other.ports)
        and rule.private >= other.private
        and rule.allow_sni_mismatch >= other.allow_sni_mismatch
        and (not rule.conditional or (rule.methods, rule.paths) == (other.methods, other.paths))
        # These two bind the requests that the rule fits, so a rule of its own makes a difference.
        and (rule.max_upload, rule.no_intercept) == (other.max_upload, other.no_intercept)
    )


def denies_all_of(rule: Rule, other: Rule) -> bool:
    """Whether a deny rule leaves nothing of what another rule is about. `!*` is about addresses, too."""
    return (
        denial_covers(rule.pattern, other.pattern)
        and ports_cover(rule.ports, other.ports)
        and (not rule.conditional or (rule.methods, rule.paths) == (other.methods, other.paths))
    )
