"""Options shared by several commands: the policy, the rights to files, the sandbox."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from exeat.cli.parser import HelpText
from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.run.settings import GivenRules

if TYPE_CHECKING:
    from exeat.sources import RuleSources

_DEFAULT_NAME = "default"
_NAME_HELP = f"the sandbox (default: {_DEFAULT_NAME})"
_FILES_SENTENCE = (
    "the command changes the working directory. What it writes elsewhere goes to a\n"
    "layer, which is dropped after the run, or kept with --name. Keys are hidden.\n"
    "[files] in a policy file adds to these options"
)


def add_repeatable(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    *names: str,
    metavar: str,
    help: str,  # noqa: A002
) -> None:
    """An option that may be given several times, each with a value."""
    parser.add_argument(*names, metavar=metavar, action="append", default=[], help=help)


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "policy",
        "all of these add up; so do PROXY_ALLOWLIST, EXEAT_POLICY, EXEAT_ADD_HOSTS and\nEXEAT_PRIVATE_NETWORKS",
    )
    add_repeatable(group, "--allow", "--allow-net", metavar="RULE", help="allow the hosts that RULE names (repeatable)")
    add_repeatable(group, "--deny", metavar="RULE", help="deny them, whatever else allows them")
    add_repeatable(group, "--policy", metavar="FILE", help="rules, hosts, limits, files: TOML, JSON; or rules: .txt")
    add_repeatable(group, "--add-host", metavar="NAME:ADDR", help="use ADDR for NAME instead of asking DNS")
    add_repeatable(group, "--private-network", metavar="CIDR", help="names may lead to these private addresses too")


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """For commands that judge without running anything: the policy, the hosts of secrets, a sandbox's list."""
    parser.add_argument("--name", metavar="NAME", help="apply the list of this sandbox as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_policy_options(parser)
    add_repeatable(parser, "--secrets", "--config", metavar="FILE", help="secrets, whose hosts are allowed: JSON, TOML")


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


def add_file_options(parser: argparse.ArgumentParser, sentence: str = _FILES_SENTENCE) -> None:
    group = parser.add_argument_group("files", sentence)
    add_repeatable(group, "--write", metavar="PATH", help="let the command change this for real (repeatable)")
    add_repeatable(group, "--read-only", metavar="PATH", help="keep the command from changing this, even in its layer")
    add_repeatable(group, "--hide", metavar="PATH", help="hide this from the command")
    add_repeatable(group, "--show", metavar="PATH", help="show this to the command, although it is a key")
    group.add_argument(
        "--files",
        choices=("view", "host"),
        help="host: the command can change every file that you can, and sees your keys (default: view)",
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
    from exeat.policy.files import LAYER_SIZE, parse_layer_size  # takes 20 ms, and few need it

    try:
        return parse_layer_size(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a layer size", where="--layer-size", expected=LAYER_SIZE) from None


class SandboxActions:
    """The actions of a command that is about one sandbox. `--name` may stand before the action or after it."""

    def __init__(self, parser: argparse.ArgumentParser, program: str) -> None:
        parser.add_argument("--name", metavar="NAME", help=_NAME_HELP)
        self._actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog=program)

    def add(
        self,
        action: str,
        sentence: str,
        description: str,
        run: Callable[[argparse.Namespace], int],
        *,
        epilog: str | None = None,
        name_help: str = _NAME_HELP,
        has_default: bool = True,
    ) -> argparse.ArgumentParser:
        """Add an action. `has_default`: without a name the sandbox `default` is meant, else none."""
        parser = self._actions.add_parser(
            action, help=sentence, description=description, epilog=epilog, formatter_class=HelpText
        )
        # A default from here would overwrite a name that stands before the action.
        parser.add_argument("--name", metavar="NAME", default=argparse.SUPPRESS, help=name_help)

        def call(options: argparse.Namespace, arguments: Sequence[str]) -> int:
            if options.name is None and has_default:
                options.name = _DEFAULT_NAME
            return run(options)

        parser.set_defaults(run=call)
        return parser
