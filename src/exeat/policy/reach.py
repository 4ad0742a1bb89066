"""May a name be reached at all? What a resolver must know before it is known what for. Pure, like decide.py."""

from __future__ import annotations

from collections.abc import Iterator

from exeat.policy.decide import Decision, Target, decide
from exeat.policy.host import Name
from exeat.policy.policy import Policy
from exeat.policy.rule import Ports, Rule


def could_allow(policy: Policy, name: Name) -> bool:
    """Whether there is a port on which some request or tunnel to this name could be allowed.

    Never False for a name that `decide` allows somewhere. It can be True for one that it allows nowhere:
    deny rules that look at methods or paths are left out, because what they leave cannot be told without a
    request. So True is no permission; every connection is still decided on its own.
    """
    denied = _denied_ports(policy, name)
    return any(_has_port_outside(rule.ports, denied) for rule in policy.allows.for_name(name.text))


def unreachable(policy: Policy, name: Name) -> Decision:
    """The denial to put on record for a name that could not be allowed: asked on a port where a rule came closest."""
    nearest: Iterator[Rule] = policy.allows.for_name(name.text)
    port = next((rule.ports[0][0] for rule in nearest), 443)
    return decide(policy, Target(name, port))


def _denied_ports(policy: Policy, name: Name) -> Ports:
    """The ports on which the name is denied whatever is asked, in order of their start."""
    rules = policy.denies.for_name(name.text)
    return tuple(sorted(ports for rule in rules if not rule.conditional for ports in rule.ports))


def _has_port_outside(ports: Ports, denied: Ports) -> bool:
    """Whether any port is left when the denied ones, in order of their start, are taken away."""
    for low, high in ports:
        free = low  # the lowest port of this range that may still be free
        for first, last in denied:
            if first > free:
                break
            free = max(free, last + 1)
        if free <= high:
            return True
    return False
