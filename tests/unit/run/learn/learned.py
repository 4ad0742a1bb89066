"""Requests that are learned from."""

from __future__ import annotations

import json
import tomllib
from ipaddress import ip_address
from typing import Any

from exeat.audit.record import Record
from exeat.policy import (
    Address,
    AddressClass,
    Policy,
    Reason,
    Source,
    Target,
    build_policy,
    canonical_host,
    classify,
    decide,
    judge_address,
    parse_document,
    parse_host_mapping,
    parse_rule,
    rule_to_allow,
)
from exeat.policy.address import parse_private_network
from exeat.policy.document import parse_listing
from exeat.run.learn.learning import Learning

HERE = Source("test")
PUBLIC = "93.184.216.34"


class Fake:
    """A gateway that lets through what is public, as far as its events tell."""

    def __init__(self, *rules: str, hosts: tuple[str, ...] = (), networks: tuple[str, ...] = ()) -> None:
        mapped = [parse_host_mapping(text, HERE) for text in hosts]
        declared = [parse_private_network(text, HERE) for text in networks]
        self.policy = build_policy([parse_rule(text, HERE) for text in rules], mapped, declared)
        self.learning = Learning(self)

    def events(self, *, max_queued: int = 0) -> Any:
        raise NotImplementedError

    def tell(self, event: str, **fields: Any) -> None:
        standard: dict[str, Any] = {"protocol": "connect", "method": "CONNECT", "port": 443, "verdict": "allow"}
        body = Record(**(standard | fields)).encode(event)
        self.learning.take(json.loads(f'{{"seq":1,"chain":"",{body}}}'))

    def ask(self, where: str, port: int, method: str = "CONNECT", address: str = PUBLIC, path: str = "/") -> bool:
        """One request, as the gateway decides and records it while learning. Returns whether it was let through."""
        host = canonical_host(where)
        target = Target(host, port) if method == "CONNECT" else Target(host, port, method, path)
        decision = decide(self.policy, target)
        inside = isinstance(host, Address) and classify(host.ip) is not AddressClass.PUBLIC
        askable = decision.reason in (Reason.NOT_LISTED, Reason.ADDRESS_NOT_LISTED, Reason.PORT_NOT_LISTED)
        if askable and not inside:
            rule = parse_rule(rule_to_allow(target), HERE)
            self.policy = self.policy.with_rules((*self.policy.rules, rule))
            self.learning.take({"event": "grant", "rule": rule.text, "by": "learn"})
            decision = decide(self.policy, target)
        if decision.allowed:
            ip = host.ip if isinstance(host, Address) else (*self.policy.mapped(host), ip_address(address))[0]
            address = str(ip)
            judged = judge_address(self.policy, decision, target, ip, own=False)
            decision = judged if not judged.allowed else decision  # the rule on record is the first one
        fields: dict[str, Any] = {
            "host": host.text,
            "port": port,
            "method": method,
            "address": address if decision.allowed or decision.reason is Reason.PRIVATE_ADDRESS else "",
            "rule": decision.rule.text if decision.rule is not None else "",
            "reason": decision.reason,
            "verdict": "allow" if decision.allowed else "deny",
        }
        self.tell("decision", **fields)
        if decision.allowed:
            self.tell("end", sent=1_500, received=2_000_000, **fields)
        return decision.allowed

    def text(self, form: str = "toml", command: tuple[str, ...] = ("curl", "a b")) -> str:
        return self.learning.policy_text(command, form)

    def rules(self) -> list[str]:
        rules: list[str] = tomllib.loads(self.text())["allow"]
        return rules


def parsed(text: str, form: str, *hosts: str) -> Policy:
    """By the parsers that `--policy` uses."""
    if form == "txt":
        return build_policy(parse_listing(text, "x.txt"), [parse_host_mapping(each, HERE) for each in hosts])
    document = parse_document(text, "x.toml")
    return build_policy(document.rules, document.hosts, document.private_networks)
