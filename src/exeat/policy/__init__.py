"""What may be reached: canonical hosts, address classes, rules, and the verdict. Pure values and functions."""

from exeat.policy.address import AddressClass, classify, embedded_ipv4, parse_private_network
from exeat.policy.decide import (
    Decision,
    Target,
    Verdict,
    address_depends_on_request,
    asks_whether_own,
    could_allow,
    decide,
    depends_on_request,
    host_addresses,
    is_exempt,
    judge_address,
    known_addresses,
    rule_to_allow,
    unreachable,
)
from exeat.policy.document import (
    PolicyDocument,
    SecretsTable,
    parse_allowlist,
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
    configured_host,
    is_same_host,
    parse_port,
    split_authority,
    unmapped,
)
from exeat.policy.options import parse_size
from exeat.policy.path import canonical_path
from exeat.policy.policy import HostMapping, Policy, build_policy
from exeat.policy.rule import Pattern, Rule, Scope, Source
from exeat.reasons import Reason

__all__ = [
    "LOCALHOST",
    "LOOPBACK",
    "Address",
    "AddressClass",
    "Decision",
    "Host",
    "HostMapping",
    "Name",
    "Pattern",
    "Policy",
    "PolicyDocument",
    "Reason",
    "Rule",
    "Scope",
    "SecretsTable",
    "Source",
    "Target",
    "Verdict",
    "address_depends_on_request",
    "asks_whether_own",
    "build_policy",
    "canonical_host",
    "canonical_path",
    "classify",
    "configured_host",
    "could_allow",
    "decide",
    "depends_on_request",
    "embedded_ipv4",
    "host_addresses",
    "is_exempt",
    "is_same_host",
    "judge_address",
    "known_addresses",
    "parse_allowlist",
    "parse_document",
    "parse_host_mapping",
    "parse_port",
    "parse_private_network",
    "parse_rule",
    "parse_size",
    "rule_to_allow",
    "split_authority",
    "unmapped",
    "unreachable",
]
