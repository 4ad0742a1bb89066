"""The hosts of a secret: the rule grammar, but narrower. A credential must never be bound to strangers."""

from __future__ import annotations

import re
from typing import Final

from exeat.policy import Pattern, Rule, Scope, Source
from exeat.policy.grammar import is_public_suffix, read_rule
from exeat.policy.host import shown
from exeat.policy.options import RuleError
from exeat.policy.rule import WEB_PORTS, Ports
from exeat.values import replace

MAX_HOSTS: Final = 100  # of one secret
HTTPS_PORTS: Final[Ports] = ((443, 443),)  # what a host without a port means here

_MAX_TEXT: Final = 400  # a name has 253 characters at most
_EXPECTED: Final = "HOST[:PORT] [private], such as api.github.com, *.example.com or 10.0.0.5:8443"
_WORD: Final = re.compile(r"[^ ]+")


def read_host(text: str, source: Source) -> Rule:
    """Read one host rule. Raises RuleError, which knows the character that is wrong."""
    if len(text) > _MAX_TEXT:
        raise RuleError(f"a host has at most {_MAX_TEXT} characters; this has {len(text)}", 0, _EXPECTED)
    words = list(_WORD.finditer(text))
    if not words:
        raise RuleError("the host is empty", 0, _EXPECTED)
    head, *options = words
    if head[0][0] == "!":
        raise RuleError("a secret lists the hosts it may go to; it cannot list others", head.start(), _EXPECTED)
    for option in options:
        if option[0] != "private":
            raise RuleError(f"a secret's host cannot have {shown(option[0])}", option.start(), "only private")
    # `force` takes the grammar's own refusal of public suffixes away. It has a way out, and here there is none.
    rule = read_rule(f"{text} force", source)
    _refuse_strangers(rule.pattern, head.start())
    return replace(rule, force=False, ports=HTTPS_PORTS if rule.ports == WEB_PORTS else rule.ports)


def _refuse_strangers(pattern: Pattern, start: int) -> None:
    network = pattern.network
    if pattern.scope is Scope.ANY:
        raise RuleError("* would send the secret to every host there is", start, "the hosts that need it")
    if pattern.scope in (Scope.BELOW, Scope.WITHIN) and is_public_suffix(pattern.name):
        raise RuleError(
            f"{shown(pattern.text)} would send the secret to anyone who registers a name under {pattern.name}",
            start,
            f"a name below it, such as *.example.{pattern.name}",
        )
    if network is not None and network.num_addresses > 1 and not network.is_private:
        raise RuleError(
            f"{shown(pattern.text)} would send the secret to anyone's addresses", start, "one address, or a name"
        )


def overlap(first: tuple[Rule, ...], second: tuple[Rule, ...]) -> bool:
    """Whether there is a host and a port that both lists cover."""
    return any(_meet(one, other) for one in first for other in second)


def _meet(one: Rule, other: Rule) -> bool:
    ports = any(low <= last and first <= high for low, high in one.ports for first, last in other.ports)
    return ports and _patterns_meet(one.pattern, other.pattern)


def _patterns_meet(one: Pattern, other: Pattern) -> bool:
    if one.network is not None or other.network is not None:
        if one.network is None or other.network is None or one.network.version != other.network.version:
            return False
        return one.network.overlaps(other.network)
    if one.name == other.name:
        # Only `good.test` and `*.good.test` share a name and no host.
        return {one.scope, other.scope} != {Scope.EXACT, Scope.BELOW}
    longer, shorter = (one, other) if len(one.name) > len(other.name) else (other, one)
    return shorter.scope is not Scope.EXACT and longer.name.endswith(f".{shorter.name}")
