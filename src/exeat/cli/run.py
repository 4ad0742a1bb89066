"""`exeat run`: its options, and from them the settings of a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from exeat.run.settings import JAILS

if TYPE_CHECKING:
    from exeat.sources import RuleSources


_SECRETS = b"EXEAT_SECRETS_JSON"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Everything but the policy options, which other commands have too."""
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the command, after --")
    secrets = parser.add_argument_group(
        "secrets", "the command gets placeholders; EXEAT_SECRETS_JSON and a policy file count too"
    )
    secrets.add_argument(
        "--secrets", "--config", metavar="FILE", action="append", default=[], help="secrets and their hosts: JSON, TOML"
    )
    secrets.add_argument(
        "--intercept",
        choices=("needed", "all", "none"),
        help="look into TLS to hosts with secrets, methods or paths; to all; to none (default: needed)",
    )
    secrets.add_argument(
        "--upstream-ca", metavar="FILE", action="append", default=[], help="trust these roots too when looking into TLS"
    )
    jail = parser.add_argument_group("jail")
    jail.add_argument(
        "--jail",
        choices=JAILS,
        default="auto",
        help="netns: namespaces, no root needed; nft: packet rules, root; seatbelt: macOS; env: variables only, not a "
        "boundary (default: netns, else nft if root; seatbelt on macOS)",
    )
    jail.add_argument(
        "--unix", metavar="PATH", action="append", default=[], help="leave this Unix socket of the host reachable"
    )
    rest = parser.add_argument_group("environment and output")
    rest.add_argument("--audit", metavar="FILE", help="write every decision there; - is stdout")
    rest.add_argument(
        "--env", metavar="NAME[=VALUE]", action="append", default=[], help="set a variable, or keep it with --clean-env"
    )
    rest.add_argument("--clean-env", action="store_true", help="start with PATH, HOME, TERM and the like only")
    rest.add_argument("--no-proxy-env", action="store_true", help="do not set HTTP_PROXY and the like")
    rest.add_argument("--quiet", action="store_true", help="no summary of what was blocked")


def run_command(
    options: argparse.Namespace,
    sources: Callable[[argparse.Namespace], RuleSources],
    policy_files: Callable[[argparse.Namespace], tuple[str, ...]],
) -> int:
    """Run what the options say. The rules are read by `sources`, later."""
    from exeat.run.main import run  # noqa: PLC0415 - loaded when it is asked for
    from exeat.run.settings import RunSettings  # noqa: PLC0415

    files = policy_files(options)
    rules = " ".join((*options.allow, os.environ.get("PROXY_ALLOWLIST", "")))
    every_rule = " ".join((rules, *options.deny))
    # Bytes as they are: a copy in text would stay in this process's memory when it is done with.
    has_secrets = bool(options.secrets or os.environb.get(_SECRETS))
    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    return run(
        RunSettings(
            argv,
            lambda: sources(options).load(),
            policy_files=files,
            secrets_files=tuple(options.secrets),
            upstream_ca=tuple(options.upstream_ca),
            may_name_loopback=bool(files) or "127." in rules or "[" in rules,
            may_intercept=has_secrets
            or bool(files or options.upstream_ca)
            or options.intercept == "all"
            or "methods=" in every_rule
            or "paths=" in every_rule,
            jail=options.jail,
            audit=options.audit,
            env=tuple(options.env),
            clean_env=options.clean_env,
            proxy_env=not options.no_proxy_env,
            unix=tuple(options.unix),
            quiet=options.quiet,
        )
    )
