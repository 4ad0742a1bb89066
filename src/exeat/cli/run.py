"""`exeat run`: its options, and from them the settings of a run."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from exeat.audit.rotation import DEFAULT_KEEP, RUN_KEEP, rotation_from
from exeat.cli.container.options import add_container_options, container_options
from exeat.cli.limits import add_limit_options, refuse_limits
from exeat.cli.options import add_file_options, add_policy_options, add_repeatable, file_settings, given_rules
from exeat.cli.vm.options import add_vm_options, vm_options
from exeat.engine.errors import NoWayError
from exeat.errors import ConfigError
from exeat.file_policy import combine
from exeat.jail.select import AUTO
from exeat.run.settings import JAILS

if TYPE_CHECKING:
    from exeat.file_policy import FileSettings
    from exeat.sandbox.folder import SandboxFolder


# Options that hardly any other program has.
_OURS_ONLY = frozenset((
    "--allow", "--deny", "--policy", "--add-host", "--learn", "--learn-out", "--upstream-ca", "--clean-env",
    "--no-proxy-env", "--summary-json", "--ask-timeout", "--layer-size", "--kvm", "--guest-root", "--time-limit",
))  # fmt: skip
_ASK_S, _MAX_ASK_S = 30.0, 3600.0


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "exeat run [--allow RULE]... [OPTION...] -- CMD [ARG...]"
    parser.description = (
        "Run a command in a jail. It reaches what the rules allow and nothing else,\n"
        "whether or not it knows about proxies. No root needed."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat run --allow example.com -- curl https://example.com/\n"
        "  exeat run --name work -- bash       # rules and log are kept; exeat proxy\n"
        "  exeat run --name work --ask -- bash # unknown hosts wait for your yes or no\n"
        "  exeat run --learn -- npm install    # what would it need?\n"
        "\n"
        "exit status: the command's; 128+N if signal N ended it; 126 or 127 if it could\n"
        "not be started; 2 if exeat started nothing; 124 if a virtual machine took too\n"
        "long (--time-limit)"
    )
    add_policy_options(parser)
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the command, after --")
    sandbox = parser.add_argument_group("sandbox")
    sandbox.add_argument("--name", metavar="N", help="run in the sandbox N, which keeps rules and a log")
    sandbox.add_argument("--new", action="store_true", help="create it if it does not exist")
    sandbox.add_argument("--empty", action="store_true", help="create it with an empty list: nothing is allowed yet")
    sandbox.add_argument("--ask", action="store_true", help="ask about hosts that no rule lists")
    sandbox.add_argument("--ask-timeout", metavar="S", type=float, help="deny after S seconds (default: 30)")
    sandbox.add_argument(
        "--ask-on",
        choices=("here", "other"),
        help="here: also at this terminal; other: only by exeat proxy approve and exeat ui (default: here)",
    )
    sandbox.add_argument("--ask-fd", metavar="N", type=int, default=-1, help=argparse.SUPPRESS)
    sandbox.add_argument("--learn", action="store_true", help="allow what no rule lists, then print the rules needed")
    sandbox.add_argument(
        "--learn-out", metavar="FILE", help="write the rules to FILE: TOML, or a list if it ends in .txt"
    )
    secrets = parser.add_argument_group(
        "secrets", "the command gets placeholders; EXEAT_SECRETS_JSON and policy files count too"
    )
    add_repeatable(secrets, "--secrets", "--config", metavar="FILE", help="secrets and their hosts: JSON, TOML")
    secrets.add_argument(
        "--intercept",
        choices=("needed", "all", "none"),
        help="look into TLS to hosts with secrets, methods or paths (needed, the default), to all, to none",
    )
    add_repeatable(secrets, "--upstream-ca", metavar="FILE", help="trust these roots too when looking into TLS")
    add_file_options(parser)
    jail = parser.add_argument_group("jail")
    jail.add_argument(
        "--jail",
        choices=JAILS,
        default="auto",
        help="netns: namespaces, no root needed; nft: packet rules, root; container: as --container; vm: as --vm; "
        "seatbelt: macOS; env: variables only, not a boundary (default: netns, else nft if root; seatbelt on macOS)",
    )
    add_repeatable(jail, "--unix", metavar="PATH", help="leave this Unix socket of the host reachable")
    add_repeatable(jail, "--device", metavar="PATH", help="show this device of the host's /dev as well")
    add_container_options(parser)
    add_vm_options(parser)
    add_limit_options(parser)
    rest = parser.add_argument_group("environment and output")
    rest.add_argument("--audit", metavar="FILE", help="write every decision to FILE; - is stdout")
    add_repeatable(rest, "--env", metavar="NAME[=VALUE]", help="set a variable, or keep it with --clean-env")
    rest.add_argument("--clean-env", action="store_true", help="start with only PATH, HOME, TERM and the like")
    rest.add_argument("--no-proxy-env", action="store_true", help="do not set HTTP_PROXY and the like")
    rest.add_argument("--quiet", action="store_true", help="no summary of what was blocked and what failed")
    rest.add_argument("--summary-json", metavar="FILE", help="write the summary to FILE, as JSON; - is stdout")
    parser.set_defaults(run=lambda options, arguments: run_command(options))


def run_command(options: argparse.Namespace) -> int:
    """Run what the options say."""
    from exeat.run.main import run
    from exeat.run.settings import RunSettings

    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    _refuse_contradictions(options)
    _refuse_misplaced(options.command)
    said = [file_settings(options)]
    folder = _open_sandbox(options, said) if options.name is not None else None
    combine(said[0], said[1:])  # what contradicts itself is told before anything starts
    settings = RunSettings(
        argv,
        given_rules(options),
        upstream_ca=tuple(options.upstream_ca),
        jail=_jail(options),
        vm=vm_options(options),
        container=container_options(options),
        audit=folder.audit_path if folder is not None else options.audit,
        audit_rotation=rotation_from(os.environ, keep=DEFAULT_KEEP if folder is not None else RUN_KEEP),
        env=tuple(options.env),
        environ=getattr(options, "environ", None),  # by no option: see exeat.cli.embedded
        clean_env=options.clean_env,
        proxy_env=not options.no_proxy_env,
        unix=tuple(options.unix),
        devices=tuple(options.device),
        files=tuple(said),
        quiet=options.quiet,
        folder=folder,
        ask=_asks(options),
        ask_here=options.ask_on != "other",
        ask_s=options.ask_timeout or _ASK_S,
        ask_fd=options.ask_fd,
        learn=options.learn or options.learn_out is not None,
        learn_out=options.learn_out,
        summary_json=options.summary_json,
        on_summary=getattr(options, "on_summary", None),
        late=getattr(options, "late", None),
    )
    has_secrets = bool(os.environ.get("EXEAT_SECRETS_JSON"))  # the run takes them out
    try:
        return run(settings)
    except NoWayError as error:
        from exeat.container.sidecar.far_run import run_far  # for engines on other machines

        return run_far(settings, error, has_secrets=has_secrets)


def _jail(options: argparse.Namespace) -> str:
    """One of them. A container and a virtual machine are jails of their own."""
    asked = {"--container": options.container is not None, "--vm": options.vm, "--kvm": options.kvm}
    kinds = {option: "container" if option == "--container" else "vm" for option, is_given in asked.items() if is_given}
    if options.jail != AUTO:
        kinds[f"--jail {options.jail}"] = options.jail
    first, *others = kinds or (AUTO,)
    for other in others:
        if kinds[other] != kinds[first]:
            raise ConfigError("a run has one jail", where=f"{first}, {other}", expected="one of the two")
    jail = kinds.get(first, AUTO)
    if jail not in ("container", "vm"):
        refuse_limits(options)
    return jail


def _asks(options: argparse.Namespace) -> bool:
    return bool(options.ask or options.ask_on is not None or options.ask_fd >= 0)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    if options.name is not None and options.audit is not None:
        raise ConfigError(
            "a named sandbox has its own log", where="--audit", expected="--name or --audit; exeat proxy log"
        )
    for option, is_given in (("--new", options.new), ("--empty", options.empty)):
        if is_given and options.name is None:
            raise ConfigError("only a named sandbox is created and kept", where=option, expected="--name N")
    asks = _asks(options)
    if options.ask_on == "other" and options.name is None and options.ask_fd < 0:
        raise ConfigError(
            "only a named sandbox can be answered from elsewhere",
            where="--ask-on other",
            expected="--name N, or --ask at this terminal",
        )
    if asks and (options.learn or options.learn_out is not None):
        raise ConfigError("a run that learns does not ask", where="--learn", expected="--ask or --learn")
    if options.ask_timeout is not None and not (asks and 0 < options.ask_timeout <= _MAX_ASK_S):
        raise ConfigError(
            "not a valid time-out",
            where=f"--ask-timeout {options.ask_timeout:g}",
            expected="more than 0 and at most 3600 seconds, with --ask",
        )


def _refuse_misplaced(command: list[str]) -> None:
    """An option behind the command is the command's own. Without -- in between it was probably meant for us.

    A denial that is taken for the command's would go unheard.
    """
    if command[:1] == ["--"]:
        return
    for word in command[1:]:
        option = word.partition("=")[0]
        if option == "--":
            return
        if option in _OURS_ONLY:
            raise ConfigError(
                f"{option} comes after the command, so it would belong to the command",
                where="exeat run",
                expected=f"exeat run {option} … -- {command[0]} …, or -- before the command if it is the command's",
            )


def _open_sandbox(options: argparse.Namespace, said: list[FileSettings]) -> SandboxFolder:
    """The sandbox's folder. What it keeps about files goes to `said`."""
    from exeat.cli.proxy.sandboxes import open_for_run
    from exeat.sandbox.file_settings import read_file_settings

    folder = open_for_run(options.name, new=options.new, empty=options.empty)
    kept = read_file_settings(folder)
    if kept is not None:
        said.append(kept)
    return folder
