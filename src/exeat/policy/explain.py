"""Verdicts in words: what was judged, which line of which file decided, and what would change it."""

from __future__ import annotations

from typing import assert_never

from exeat.policy.decide import Decision, Target, decide, rule_to_allow
from exeat.policy.host import Name, shown
from exeat.policy.policy import Policy
from exeat.reasons import Reason
from exeat.values import frozen


@frozen
class Explanation:
    """For people. `where` is the source of the rule, `leads` to which inside addresses the host may lead, and `change`
    what would have to change; all of them may be empty.
    """

    target: str
    host: str
    port: int
    decision: Decision
    where: str
    sentence: str
    change: str
    leads: str = ""


def explain(policy: Policy, target: Target) -> Explanation:
    """Judge the target and say why. Resolution is not part of it: no name is looked up."""
    decision = decide(policy, target)
    sentence, change = describe(decision, target)
    return Explanation(
        target=_target_text(target),
        host=target.host.text,
        port=target.port,
        decision=decision,
        where=str(decision.rule.source) if decision.rule is not None else "",
        sentence=sentence,
        change=change,
        leads=_leads(policy, decision, target) if decision.allowed else "",
    )


def _leads(policy: Policy, decision: Decision, target: Target) -> str:
    """What will happen once the name is looked up, where networks are declared for that."""
    host = target.host
    if not policy.private_networks or not isinstance(host, Name) or policy.mapped(host):
        return ""
    if decision.rule is not None and decision.rule.private:
        return "any address, because of private"
    networks = ", ".join(str(network) for network in policy.private_networks)
    return f"public addresses, and {networks} because of private_networks; elsewhere inside it is denied"


def describe(decision: Decision, target: Target) -> tuple[str, str]:
    """One sentence on the decision, and what would have to change for it to be an allow ("" if it is)."""
    place = f"{target.host.authority}:{target.port}"
    rule = f'the rule "{decision.rule}"'  # only used with reasons that come with a rule
    add = f'add the rule "{rule_to_allow(target)}"'
    match decision.reason:
        case Reason.ALLOWED:
            return f"{place} is allowed by {rule}.", ""
        case Reason.NOT_LISTED:
            return f"No rule lists {target.host}, and unlisted hosts are denied.", add
        case Reason.ADDRESS_NOT_LISTED:
            return f"No rule lists the address {target.host}; allowing a name does not allow its address.", add
        case Reason.PORT_NOT_LISTED:
            return f"T{rule[1:]} lists {target.host}, but not port {target.port}.", add
        case Reason.METHOD_NOT_LISTED:
            what = shown(target.method or "")
            return f"T{rule[1:]} does not list the method {what}.", f"add {what} to methods= of {rule}"
        case Reason.PATH_NOT_LISTED:
            what = shown(target.path or "")
            return f"T{rule[1:]} does not list the path {what}.", f"add {what} to paths= of {rule}"
        case Reason.NEEDS_INTERCEPTION:
            return (
                f"T{rule[1:]} judges requests, and what goes through a tunnel cannot be seen.",
                f"turn on TLS interception for {target.host}, or take methods= and paths= off {rule}",
            )
        case Reason.PRIVATE_ADDRESS:
            return f"{place} leads to an address that is not on the public internet.", _private(decision, add)
        case Reason.OWN_ADDRESS:
            return f"{place} leads to an address of this machine.", _private(decision, add)
        case Reason.DENIED_BY_RULE:
            return f"{place} is denied by {rule}, and deny beats allow.", f"remove {rule}"
    assert_never(decision.reason)


def _private(decision: Decision, add: str) -> str:
    return add if decision.rule is None else f'add the option private to the rule "{decision.rule}"'


def _target_text(target: Target) -> str:
    place = f"{target.host.authority}:{target.port}"
    if target.method is None:
        return place
    return f"{shown(target.method)[1:-1]} {place}{shown(target.path or '')[1:-1]}"
