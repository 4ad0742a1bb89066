"""How rules lie to each other: which hosts of one are hosts of the other. Pure, for those who change lists of rules."""

from __future__ import annotations

from exeat.policy.rule import Pattern, Ports, Rule, Scope


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
