"""The verdict: pure functions of policy and target. No I/O, clock or randomness, and no exceptions.

The order is fixed. A deny rule that fits wins over everything. Then one allow rule must fit in full: host,
port and, where it asks, method and path. What is left is denied, with the reason that helps most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from exeat.policy.address import AddressClass, classify, declared, holds_no_public
from exeat.policy.host import LOCALHOST, LOOPBACK, Address, Host, Name, unmapped
from exeat.policy.path import is_canonical_path, path_matches
from exeat.policy.policy import IP, Policy, address_forms
from exeat.policy.rule import WEB_PORTS, Ports, Rule, Scope
from exeat.reasons import PolicyReason, Reason
from exeat.values import field, frozen

# How far a rule got before it failed to fit: the rule that got furthest sets the reason.
_PROGRESS = {
    Reason.PORT_NOT_LISTED: 1,
    Reason.METHOD_NOT_LISTED: 2,
    Reason.PATH_NOT_LISTED: 3,
    Reason.NEEDS_INTERCEPTION: 4,
    Reason.PRIVATE_ADDRESS: 5,
}


@frozen
class Target:
    """What is asked for. `method` None is a tunnel: nothing is known of what goes through it.

    `path` must be canonical (`canonical_path`). One that is not fits no allow rule with paths, and every
    deny rule with paths.
    """

    host: Host
    port: int
    method: str | None = None
    path: str | None = None
    _is_clear: bool | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def has_canonical_path(self) -> bool:
        """Found out once, however many rules ask: of a long path that takes milliseconds."""
        if self._is_clear is None:
            object.__setattr__(self, "_is_clear", self.path is not None and is_canonical_path(self.path))
        return bool(self._is_clear)


@frozen
class Decision:
    """A verdict. `rule` is the one that decided, or for a near miss the one that came closest."""

    rule: Rule | None
    reason: PolicyReason
    # Of the two above. One decision is asked for them with every request.
    allowed: bool = field(default=False, init=False, repr=False, compare=False)
    rule_text: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", self.reason is Reason.ALLOWED)
        object.__setattr__(self, "rule_text", self.rule.text if self.rule is not None else "")


def decide(policy: Policy, target: Target) -> Decision:
    """Judge a request or tunnel by what was asked for, before any name is resolved."""
    denial = _denial(_denying(policy, target.host), target)
    if denial is not None and denial.reason is Reason.DENIED_BY_RULE:
        return denial
    near: Rule | None = None
    implied: Rule | None = None
    covered = False  # by a written rule, for this host and port
    reason: PolicyReason = Reason.ADDRESS_NOT_LISTED if isinstance(target.host, Address) else Reason.NOT_LISTED
    for rule in _allowing(policy, target.host):
        fit = _fit(rule, target)
        if fit is Reason.ALLOWED:
            if not rule.implied:
                return denial or Decision(rule, Reason.ALLOWED)
            implied = implied or rule
            continue
        covered = covered or not (rule.implied or fit is Reason.PORT_NOT_LISTED)
        if near is None or _PROGRESS[fit] > _PROGRESS[reason]:
            near, reason = rule, fit
    if implied is not None and not covered:
        return denial or Decision(implied, Reason.ALLOWED)
    return Decision(near, reason)


def judge_address(policy: Policy, decision: Decision, target: Target, ip: IP, *, own: bool) -> Decision:
    """Judge one address that an allowed target resolved to. Every address of an answer must be judged.

    `own` says that the address is one of this machine's; it may be left at False unless `asks_whether_own`. Being
    what an allowed name resolves to is no reason to reach an inside address: the name's owner chose it (DNS
    rebinding), not the user.
    """
    if not decision.allowed:
        return decision
    ip = unmapped(ip)
    denial = _denial(_denying(policy, Address(ip)), target)
    if denial is not None:
        return denial
    kind = classify(ip)
    if kind is AddressClass.PUBLIC and not own:
        return decision
    if decision.rule is not None and decision.rule.private:
        return decision
    if isinstance(target.host, Name):
        if ip in policy.mapped(target.host):
            return decision
        if not own and declared(policy.private_networks, ip) is not None:
            return decision
    for rule in _allowing(policy, Address(ip)):
        if _lists(rule) and _fit(rule, target) is Reason.ALLOWED:
            return decision
    for rule in _allowing(policy, target.host):  # rules for one host are alternatives
        if not rule.private or (rule.implied and not (decision.rule is not None and decision.rule.implied)):
            continue
        if _fit(rule, target) is Reason.ALLOWED:
            return Decision(rule, Reason.ALLOWED)
    reason: PolicyReason = Reason.OWN_ADDRESS if own and asks_whether_own(policy, ip) else Reason.PRIVATE_ADDRESS
    return Decision(decision.rule, reason)


def asks_whether_own(policy: Policy, ip: IP) -> bool:
    """Whether it makes a difference to `judge_address` that an address is this machine's. Finding out costs calls."""
    return classify(ip) is AddressClass.PUBLIC or declared(policy.private_networks, ip) is not None


def depends_on_request(policy: Policy, host: Host, port: int) -> bool:
    """Whether `decide` may say different things about two requests to this place.

    If not, one decision, that about a tunnel for example, holds for all.
    """
    return _any_conditional(chain(_allowing(policy, host), _denying(policy, host)), port)


def address_depends_on_request(policy: Policy, host: Host, port: int) -> bool:
    """Whether `judge_address` may, after the same decision, say different things about two requests to this place.

    Which addresses it leads to is not known here: any rule for addresses counts.
    """
    networks = chain(policy.allows.conditional_networks(), policy.denies.conditional_networks())
    named = chain(*(rules.for_name(LOCALHOST.text) for rules in (policy.allows, policy.denies)))  # loopback, too
    private = (rule for rule in _allowing(policy, host) if rule.private)
    return _any_conditional(chain(networks, named, policy.denies.for_any(), private), port)


def _any_conditional(rules: Iterator[Rule], port: int) -> bool:
    return any(rule.conditional and rule.has_port(port) for rule in rules)


def is_exempt(policy: Policy, host: Host, port: int) -> bool:
    """Whether a rule for this place says that its TLS is not to be intercepted."""
    return any(rule.no_intercept and rule.has_port(port) for rule in _allowing(policy, host))


def host_addresses(policy: Policy, port: int) -> tuple[IP, ...]:
    """Where `localhost` is on this port: the loopback addresses that rules list, by that name or each by itself."""
    listed = tuple(
        ip for ip in LOOPBACK if any(rule.has_port(port) and _lists(rule) for rule in _allowing(policy, Address(ip)))
    )
    return listed or LOOPBACK


def known_addresses(policy: Policy, name: Name, port: int) -> tuple[IP, ...]:
    """Where a name leads that is not to be asked for: the user has said so, or it is `localhost`. () for all others."""
    return policy.mapped(name) or (host_addresses(policy, port) if name == LOCALHOST else ())


def _allowing(policy: Policy, host: Host) -> Iterator[Rule]:
    match host:
        case Name(text):
            yield from policy.allows.for_name(text)
            if host == LOCALHOST:
                for ip in LOOPBACK:
                    yield from (rule for rule in policy.allows.for_address(ip) if _is_one_address(rule))
        case Address(ip):
            yield from policy.allows.for_address(ip)
            if ip in LOOPBACK:
                yield from filter(_names_localhost, policy.allows.for_name(LOCALHOST.text))


def _names_localhost(rule: Rule) -> bool:
    return rule.pattern.scope is Scope.EXACT and rule.pattern.name == LOCALHOST.text


def _is_one_address(rule: Rule) -> bool:
    network = rule.pattern.network
    return network is not None and network.prefixlen == network.max_prefixlen


def _denying(policy: Policy, host: Host) -> Iterator[Rule]:
    """Deny rules for a host. They look through embeddings, and `!*` covers addresses too: wider is safer."""
    match host:
        case Name(text):
            yield from policy.denies.for_name(text)
        case Address(ip):
            forms = address_forms(ip)
            for form in forms:
                yield from policy.denies.for_address(form)
            yield from policy.denies.for_any()
            if any(form in LOOPBACK for form in forms):
                yield from policy.denies.for_name(LOCALHOST.text)


def _denial(rules: Iterator[Rule], target: Target) -> Decision | None:
    """The denial these rules give, if any. One that only interception could avert comes last."""
    maybe: Rule | None = None
    for rule in rules:
        if not rule.has_port(target.port):
            continue
        if rule.conditional and target.method is None:
            maybe = maybe or rule
        elif _is_denied_request(rule, target):
            return Decision(rule, Reason.DENIED_BY_RULE)
    if maybe is not None:
        # The tunnel could carry just what is denied: fail closed, and say what would help.
        return Decision(maybe, Reason.NEEDS_INTERCEPTION)
    return None


def _is_denied_request(rule: Rule, target: Target) -> bool:
    """Deny reads widely: any case of a method, and an unknown or unclear path, count as denied."""
    if rule.methods is not None and (target.method or "").upper() not in rule.methods:
        return False
    if rule.paths is None:
        return True
    path = target.path
    if path is None or not target.has_canonical_path:
        return True
    return any(path_matches(pattern, path) for pattern in rule.paths)


def _fit(rule: Rule, target: Target) -> PolicyReason:
    """ALLOWED if the rule, whose pattern covers the host, fits the rest of the target; else what is missing."""
    if not rule.has_port(target.port):
        return Reason.PORT_NOT_LISTED
    if isinstance(target.host, Address) and not _lists(rule) and classify(target.host.ip) is not AddressClass.PUBLIC:
        return Reason.PRIVATE_ADDRESS
    if not rule.conditional:
        return Reason.ALLOWED
    if target.method is None:
        return Reason.NEEDS_INTERCEPTION
    if rule.methods is not None and target.method not in rule.methods:
        return Reason.METHOD_NOT_LISTED
    if rule.paths is not None:
        path = target.path
        if path is None or not target.has_canonical_path or not any(path_matches(each, path) for each in rule.paths):
            return Reason.PATH_NOT_LISTED
    return Reason.ALLOWED


def _lists(rule: Rule) -> bool:
    """Whether a network rule means its non-public addresses: one address, inside space only, or `private`."""
    network = rule.pattern.network
    if rule.private or network is None:
        return rule.private or _names_localhost(rule)
    assert rule.pattern.scope is Scope.NETWORK
    return _is_one_address(rule) or holds_no_public(network)


def rule_to_allow(target: Target) -> str:
    """The shortest rule that would allow the target's host and port. For an inside address add ` private`."""
    web = any(low <= target.port <= high for low, high in WEB_PORTS)
    return target.host.authority if web else f"{target.host.authority}:{target.port}"


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
