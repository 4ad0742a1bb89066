"""The options that say what may be reached, for every command that has a policy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
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
    from exeat.sources import RuleSources

    given = given_rules(options, *more_files)
    return RuleSources(**given.as_dict(), env_secrets=os.environ.get("EXEAT_SECRETS_JSON", ""))


_SENTENCE = (
    "the command changes the working directory. What it writes elsewhere goes to a\n"
    "layer, which ends with the run or stays with --name. Keys are hidden. What\n"
    "[files] in a policy file says adds to these options"
)


def add_file_options(parser: argparse.ArgumentParser, sentence: str = _SENTENCE) -> None:
    group = parser.add_argument_group("files", sentence)
    group.add_argument(
        "--write", metavar="PATH", action="append", default=[], help="the command may change this for real (repeatable)"
    )
    group.add_argument(
        "--read-only",
        metavar="PATH",
        action="append",
        default=[],
        help="the command cannot change this, not even in its layer",
    )
    group.add_argument("--hide", metavar="PATH", action="append", default=[], help="the command does not find this")
    group.add_argument(
        "--show", metavar="PATH", action="append", default=[], help="the command finds this, although it is a key"
    )
    group.add_argument(
        "--files",
        choices=("view", "host"),
        help="host: the command changes every file that you may, and finds your keys (default: view)",
    )
    group.add_argument(
        "--layer-size", metavar="SIZE", help="how much the command may write to the layer (default: 8GiB)"
    )
    group.add_argument(
        "--nest",
        action="store_true",
        help="let the command make sandboxes of its own (user namespaces): bwrap, Chromium",
    )


def file_settings(options: argparse.Namespace) -> FileSettings:
    """What the options say. Raises ConfigError."""
    return FileSettings(
        mode=options.files,
        write=_paths("--write", options.write),
        read_only=_paths("--read-only", options.read_only),
        hide=_paths("--hide", options.hide),
        show=_paths("--show", options.show),
        layer_bytes=None if options.layer_size is None else _layer_bytes(options.layer_size),
        nest=options.nest or None,
    )


def _paths(option: str, given: Iterable[str]) -> tuple[str, ...]:
    paths = tuple(given)
    if "" in paths:
        raise ConfigError("an empty path", where=option, expected="a file or a folder")
    return paths


def _layer_bytes(text: str) -> int:
    from exeat.policy.files import LAYER_SIZE, parse_layer_size

    try:
        return parse_layer_size(text)
    except ValueError:
        raise ConfigError(f"not a size of a layer: {text!r}", where="--layer-size", expected=LAYER_SIZE) from None
