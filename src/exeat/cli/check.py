"""`exeat check`: one verdict, explained."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Final

from exeat.cli.options import add_judging_options, policy_sources
from exeat.errors import ConfigError, HostError, ProtocolError
from exeat.policy import Name, Policy, Reason, Target, canonical_path, judge_address, known_addresses, split_authority
from exeat.policy.explain import Explanation, describe, explain
from exeat.values import replace

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(?:\?[^#]*)?(?:#.*)?", re.DOTALL)
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22, "git": 9418, "ftp": 21, "postgresql": 5432}
_EXPECTED: Final = "a URL such as https://api.github.com/, or HOST:PORT"


def add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say whether a URL would be allowed, by which rule, and what would have to\n"
        "change. Sends nothing: the addresses of a name are judged when a connection\n"
        "is made."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat check --allow .github.com https://api.github.com/\n"
        "  exeat check --name work registry.npmjs.org:443\n"
        "\n"
        "exit status: 0 allowed, 1 denied, 2 bad arguments or files"
    )
    parser.add_argument("target", metavar="URL|HOST:PORT", help="https://api.github.com/ or api.github.com:443")
    parser.add_argument("--method", metavar="METHOD", default="GET", help="HTTP method for URLs (default: %(default)s)")
    add_judging_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    listed: tuple[str, ...] = ()
    if options.name is not None:
        from exeat.sandbox.folder import open_sandbox

        with open_sandbox(options.name) as folder:
            listed = (folder.allowlist_path,)
    loaded = policy_sources(options, *listed).load()
    return check(loaded.policy, loaded.intercept, options.target, method=options.method, as_json=options.json)


def check(policy: Policy, intercept: str, text: str, *, method: str, as_json: bool) -> int:
    """Print the verdict; 0 allowed, 1 denied."""
    target, inside = parse_target(text, method)
    try:
        explanation = _explain(policy, target)
        if explanation.decision.reason is Reason.NEEDS_INTERCEPTION and inside is not None and intercept != "none":
            explanation = _explain(policy, inside)  # `exeat run` looks into the tunnel
    except ProtocolError as error:
        raise ConfigError(error.public, where=repr(text), expected=_EXPECTED) from None
    print(json.dumps(_as_dict(explanation), indent=2) if as_json else "\n".join(_as_lines(explanation)))
    return 0 if explanation.decision.allowed else 1


def _explain(policy: Policy, target: Target) -> Explanation:
    """As the gateway judges. Raises ProtocolError for a path that cannot be judged, if a rule looks at paths."""
    explanation = explain(policy, Target(target.host, target.port))
    if target.path is not None:
        try:
            judged = Target(target.host, target.port, target.method, canonical_path(target.path))
            explanation = explain(policy, judged)
        except ProtocolError:
            if explanation.decision.reason is Reason.NEEDS_INTERCEPTION:
                raise
    return _with_given_addresses(policy, target, explanation)


def _with_given_addresses(policy: Policy, target: Target, explanation: Explanation) -> Explanation:
    """What `--add-host` says the name leads to is known, and so is `localhost`: that is judged too."""
    if not isinstance(target.host, Name):
        return explanation
    for ip in known_addresses(policy, target.host, target.port):
        judged = judge_address(policy, explanation.decision, target, ip, own=False)
        if not judged.allowed and explanation.decision.allowed:
            sentence, change = describe(judged, target)
            where = str(judged.rule.source) if judged.rule is not None else ""
            by = " (--add-host)" if policy.mapped(target.host) else ""
            sentence = f"It leads to {ip}{by}. {sentence}"
            return replace(explanation, decision=judged, where=where, sentence=sentence, change=change)
    return explanation


def parse_target(text: str, method: str) -> tuple[Target, Target | None]:
    """What `exeat check` was asked about, and the request inside if it is a tunnel to a web server.

    Raises ConfigError.
    """
    try:
        url = _URL.fullmatch(text)
        if url is None:
            host, port = split_authority(text)
            return Target(host, port if port is not None else 443), None
        scheme = url[1].lower()
        host, port = split_authority(url[2])
        if port is None:
            port = _PORTS.get(scheme)
        if port is None:
            raise ConfigError(f'no port is known for "{scheme}:"', where=text, expected="a port in the URL")
        # As clients send it. Whether it can be judged matters only where a rule looks at it.
        request = Target(host, port, method, (url[3] or "/").encode("utf-8", "surrogateescape").decode("latin-1"))
        if scheme == "http":
            return request, None
        return Target(host, port), request if scheme in ("https", "wss") else None
    except (HostError, ProtocolError) as error:
        raise ConfigError(error.public, where=repr(text), expected=_EXPECTED) from None


def _as_lines(explanation: Explanation) -> list[str]:
    decision = explanation.decision
    lines = [
        f"{'allowed' if decision.allowed else 'denied '}  {explanation.target}",
        f"  why     {explanation.sentence}",
    ]
    if decision.rule is not None:
        lines.append(f"  rule    {decision.rule.text}    ({explanation.where})")
    lines.append(f"  host    {explanation.host}")
    if explanation.leads:
        lines.append(f"  leads   to {explanation.leads}")
    if explanation.change:
        lines.append(f"  change  {explanation.change}")
    return lines


def _as_dict(explanation: Explanation) -> dict[str, object]:
    decision = explanation.decision
    return {
        "verdict": "allow" if decision.allowed else "deny",
        "reason": decision.reason.value,
        "target": explanation.target,
        "host": explanation.host,
        "port": explanation.port,
        "rule": decision.rule.text if decision.rule else None,
        "where": explanation.where or None,
        "why": explanation.sentence,
        "change": explanation.change or None,
        "leads": explanation.leads or None,
    }
