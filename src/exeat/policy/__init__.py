"""What may be reached: canonical hosts, address classes, rules, and the verdict. Pure values and functions."""

from exeat.policy.address import AddressClass, classify
from exeat.policy.decide import (
    Decision,
    Target,
    asks_whether_own,
    decide,
    is_exempt,
    judge_address,
    known_addresses,
    rule_to_allow,
)
from exeat.policy.document import (
    parse_document,
    parse_host_mapping,
)
from exeat.policy.grammar import parse_rule
from exeat.policy.host import (
    LOCALHOST,
    LOOPBACK,
    Address,
    Host,
    Name,
    canonical_host,
    is_same_host,
    split_authority,
    unmapped,
)
from exeat.policy.path import canonical_path
from exeat.policy.policy import Policy, build_policy
from exeat.policy.rule import Pattern, Rule, Scope, Source
from exeat.reasons import Reason

__all__ = [
    "LOCALHOST",
    "LOOPBACK",
    "Address",
    "AddressClass",
    "Decision",
    "Host",
    "Name",
    "Pattern",
    "Policy",
    "Reason",
    "Rule",
    "Scope",
    "Source",
    "Target",
    "asks_whether_own",
    "build_policy",
    "canonical_host",
    "canonical_path",
    "classify",
    "decide",
    "is_exempt",
    "is_same_host",
    "judge_address",
    "known_addresses",
    "parse_document",
    "parse_host_mapping",
    "parse_rule",
    "rule_to_allow",
    "split_authority",
    "unmapped",
]
