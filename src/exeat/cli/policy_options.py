"""The options that say what may be reached, for every command that has a policy."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from exeat.run.settings import GivenRules

if TYPE_CHECKING:
    from exeat.sources import RuleSources


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "policy",
        "all of these add up; so do PROXY_ALLOWLIST, EXEAT_POLICY, EXEAT_ADD_HOSTS and\nEXEAT_PRIVATE_NETWORKS",
    )
    group.add_argument(
        "--allow", "--allow-net", metavar="RULE", action="append", default=[], help="allow what RULE names (repeatable)"
    )
    group.add_argument("--deny", metavar="RULE", action="append", default=[], help="deny it, whatever else allows it")
    group.add_argument(
        "--policy",
        metavar="FILE",
        action="append",
        default=[],
        help="rules, hosts, limits, files: TOML, JSON; or rules: .txt",
    )
    group.add_argument(
        "--add-host", metavar="NAME:ADDR", action="append", default=[], help="take ADDR for NAME instead of asking DNS"
    )
    group.add_argument(
        "--private-network",
        metavar="CIDR",
        action="append",
        default=[],
        help="names may lead to these inside addresses too",
    )


def policy_files(options: argparse.Namespace) -> tuple[str, ...]:
    """The files that rules are read from."""
    given = os.environ.get("EXEAT_POLICY")
    return (given, *options.policy) if given else tuple(options.policy)


def given_rules(options: argparse.Namespace, *more_files: str) -> GivenRules:
    """What a command line and its environment say about rules, but for secrets in the environment."""
    return GivenRules(
        allow=tuple(options.allow),
        deny=tuple(options.deny),
        files=(*policy_files(options), *more_files),
        add_hosts=tuple(options.add_host),
        private_networks=tuple(options.private_network),
        allowlist=os.environ.get("PROXY_ALLOWLIST", ""),
        env_hosts=os.environ.get("EXEAT_ADD_HOSTS", ""),
        env_private_networks=os.environ.get("EXEAT_PRIVATE_NETWORKS", ""),
        secrets_files=tuple(getattr(options, "secrets", ())),
        intercept=getattr(options, "intercept", None) or "",
    )


def policy_sources(options: argparse.Namespace, *more_files: str) -> RuleSources:
    """The rule sources of a command line and its environment."""
    from exeat.sources import RuleSources  # noqa: PLC0415 - loaded when a command needs it, not for --help

    given = given_rules(options, *more_files)
    return RuleSources(**given._asdict(), env_secrets=os.environ.get("EXEAT_SECRETS_JSON", ""))
