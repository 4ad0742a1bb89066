"""Judges a recorded decision by another policy. Pure, like decide.py.

A record does not say everything: not the path of a request, and not what went through a tunnel that was not
looked into. Where the new verdict hangs on that, it cannot be told, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple

from exeat.errors import HostError
from exeat.policy.decide import Decision, Target, could_allow, decide, judge_address, known_addresses
from exeat.policy.host import LOCALHOST, LOOPBACK, Host, Name, canonical_host
from exeat.policy.policy import IP, Policy, address_forms
from exeat.policy.rule import Rule
from exeat.reasons import POLICY_DENIALS, Reason
from exeat.values import replace

_TUNNEL: Final = "CONNECT"
_LOOKUP: Final = "dns"
_INSIDE_TLS: Final = ("/https", "/h2")


class Recorded(NamedTuple):
    """One decision as the log has it. `policy` is the digest of the one that was in force then.

    `jailed`: of a command in a jail, where TLS can be looked into. A gateway that runs alone cannot do that.
    """

    host: str
    port: int
    method: str
    protocol: str
    allowed: bool
    rule: str
    reason: str
    address: str
    policy: str
    jailed: bool


class Outcome(StrEnum):
    """What becomes of it."""

    SAME = "same"
    ALLOWED = "allowed"
    DENIED = "denied"
    UNKNOWN = "unknown"
    OTHER = "not-by-policy"  # refused for what no policy decides on: malformed, wrong credentials, not TCP


class Again(NamedTuple):
    """The new verdict; `rule` and `reason` are empty unless it is another one than on record."""

    outcome: Outcome
    rule: str = ""
    reason: str = ""


class Unknown(StrEnum):
    """Why a new verdict cannot be told."""

    PATH = "paths are not on record"
    TUNNEL = "what went through the tunnel is not on record"
    TLS_NAME = "the name that TLS asked for is not on record"


_SAME: Final = Again(Outcome.SAME)
_OTHER: Final = Again(Outcome.OTHER)


def judge_again(policy: Policy, recorded: Recorded, *, intercepts: bool = True) -> Again:
    """What `policy` makes of a recorded decision. `intercepts`: TLS is looked into where rules ask for it."""
    by_policy = recorded.allowed or recorded.reason in POLICY_DENIALS or recorded.reason == Reason.SNI_MISMATCH
    if not by_policy or (recorded.reason == Reason.OWN_ADDRESS and not recorded.rule):
        return _OTHER  # the last one: a loop through the gateway itself, which nothing can allow
    try:
        host = canonical_host(recorded.host)
        address = ip_address(recorded.address) if recorded.address else None
    except (HostError, ValueError):
        return _OTHER
    if recorded.protocol == _LOOKUP:
        return _look_up_again(policy, host, recorded)
    if not 1 <= recorded.port <= 65535:
        return _OTHER
    intercepts = intercepts and recorded.jailed
    if recorded.policy == policy.digest and recorded.reason not in (Reason.NEEDS_INTERCEPTION, Reason.INTERCEPTED):
        return _SAME if recorded.reason != Reason.SNI_MISMATCH else _OTHER
    if recorded.method == _TUNNEL:
        return _judge_tunnel(policy, Target(host, recorded.port), recorded, address, intercepts=intercepts)
    if not intercepts and recorded.protocol.endswith(_INSIDE_TLS):
        around = decide(policy, Target(host, recorded.port))
        if not around.allowed:
            return _compared(recorded, around)
    return _judge_request(policy, Target(host, recorded.port, recorded.method), recorded, address)


def _look_up_again(policy: Policy, host: Host, recorded: Recorded) -> Again:
    """Only refused lookups are on record. A name that could be allowed is answered."""
    if recorded.allowed or not isinstance(host, Name) or recorded.method == "PTR":
        return _OTHER
    if not could_allow(policy, host):
        return _SAME
    return Again(Outcome.ALLOWED, next(policy.allows.for_name(host.text)).text, Reason.ALLOWED)


def _judge_tunnel(policy: Policy, target: Target, recorded: Recorded, address: IP | None, *, intercepts: bool) -> Again:
    decision = _verdict(policy, target, recorded, address)
    if decision.reason is Reason.NEEDS_INTERCEPTION and intercepts:
        if recorded.reason == Reason.INTERCEPTED:
            return _SAME
        return _unknown(Unknown.TUNNEL, decision.rule)
    mismatch_passes = decision.rule is not None and decision.rule.allow_sni_mismatch
    if recorded.reason == Reason.SNI_MISMATCH:
        return _compared(recorded, decision) if decision.allowed and mismatch_passes else _OTHER
    if recorded.allowed and decision.allowed and not mismatch_passes and _had_option(recorded, "allow_sni_mismatch"):
        return _unknown(Unknown.TLS_NAME, decision.rule)
    return _compared(recorded, decision)


def _judge_request(policy: Policy, target: Target, recorded: Recorded, address: IP | None) -> Again:
    rules = tuple(dict.fromkeys(_about(policy, target.host, address)))
    if all(rule.paths is None for rule in rules):
        return _compared(recorded, _verdict(policy, target, recorded, address))
    # Once with every path rule read so that it denies, once so that it allows: what both say holds for any path.
    worst = _verdict(policy.with_rules(_read(rules, recorded, hopeful=False)), target, recorded, address)
    best = _verdict(policy.with_rules(_read(rules, recorded, hopeful=True)), target, recorded, address)
    if worst.allowed == best.allowed:
        return _compared(recorded, best)
    return _unknown(Unknown.PATH, worst.rule)


def _about(policy: Policy, host: Host, address: IP | None) -> Iterator[Rule]:
    """Every rule that can have a say in what becomes of a request to this host, at this address if it is known."""
    addresses: Sequence[IP] = ()
    if isinstance(host, Name):
        yield from policy.allows.for_name(host.text)
        yield from policy.denies.for_name(host.text)
        addresses = policy.mapped(host) or (() if address is None else (address,))
        if host == LOCALHOST:
            addresses = (*addresses, *LOOPBACK)
    else:
        addresses = (host.ip,)
    for ip in addresses:
        for form in address_forms(ip):
            yield from policy.allows.for_address(form)
            yield from policy.denies.for_address(form)
            if form in LOOPBACK:
                yield from policy.allows.for_name(LOCALHOST.text)
                yield from policy.denies.for_name(LOCALHOST.text)
        yield from policy.denies.for_any()


def _read(rules: Sequence[Rule], recorded: Recorded, *, hopeful: bool) -> Iterator[Rule]:
    """The rules for a path that is not known: as if it fitted where that is good (or bad) for the request."""
    for rule in rules:
        known = _known_to_fit(rule, recorded)
        fits = known if known is not None else hopeful is not rule.deny
        if rule.paths is None or rule.deny is fits:
            # Without a path to look at, a deny rule denies. An allow rule does not fit, and is kept all the same: it
            # stands before those that follow from secrets.
            yield rule
        elif fits:
            yield replace(rule, paths=None)


def _known_to_fit(rule: Rule, recorded: Recorded) -> bool | None:
    """What the record tells of a rule's paths: if it gave the verdict it did fit; if it just missed, it did not."""
    if rule.text != recorded.rule:
        return None
    if recorded.allowed or recorded.reason == Reason.DENIED_BY_RULE:
        return True
    return False if recorded.reason == Reason.PATH_NOT_LISTED else None


def _verdict(policy: Policy, target: Target, recorded: Recorded, address: IP | None) -> Decision:
    """As the gateway does it: by what was asked for, then by every address that this leads to and that is known."""
    decision = decide(policy, target)
    if not decision.allowed:
        return decision
    host = target.host
    known: Sequence[IP] = () if address is None else (address,)
    addresses = (known_addresses(policy, host, target.port) or known) if isinstance(host, Name) else (host.ip,)
    for ip in addresses:
        own = recorded.reason == Reason.OWN_ADDRESS
        judged = judge_address(policy, decision, target, ip, own=own)
        if not judged.allowed:
            return judged
    return decision


def _compared(recorded: Recorded, decision: Decision) -> Again:
    if decision.allowed == recorded.allowed:
        return _SAME
    rule = decision.rule.text if decision.rule is not None else ""
    outcome = Outcome.ALLOWED if decision.allowed else Outcome.DENIED
    return Again(outcome, rule, decision.reason)


def _unknown(why: Unknown, rule: Rule | None) -> Again:
    return Again(Outcome.UNKNOWN, rule.text if rule is not None else "", why)


def _had_option(recorded: Recorded, option: str) -> bool:
    return option in recorded.rule.split(" ")[1:]
