"""The `exeat` command: parse, call, print. Exit status 2 means that nothing was started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import exeat
from exeat.cli.parser import CommandParser, HelpText
from exeat.cli.start import INTERRUPTED, hear_interrupts
from exeat.errors import ConfigError, ExeatError, JailError, StartError


def console(given: argparse.Namespace | None = None) -> NoReturn:
    """The program `exeat`. Ends at once: taking an interpreter apart in order costs 5 ms, and nothing here needs it.

    `given` is what is said by no argument.
    """
    try:
        status = main(given=given)
    except KeyboardInterrupt:  # so early that nothing was started
        status = INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by the caller
                stream.flush()
        except OSError:
            status = status or 1
    os._exit(status)


def main(argv: Sequence[str] | None = None, given: argparse.Namespace | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = build_parser(arguments[0] if arguments else "").parse(arguments, given)
    try:
        hear_interrupts()
        status: int = options.run(options, arguments)
    except (ConfigError, JailError) as error:
        print(f"exeat: {error}", file=sys.stderr)
        return 2
    except ExeatError as error:
        detail = f"\n  {error.detail}" if error.detail else ""
        print(f"exeat: {error.public}{detail}", file=sys.stderr)
        return 2 if isinstance(error, StartError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, which is its right. Keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def build_parser(wanted: str | None = None) -> CommandParser:
    """The parser. With a command that is known, for that one only: 4 ms less at every start.

    With any other word all commands are there, as far as `exeat --help` needs them; with None, all of them in full.
    """
    parser = CommandParser(
        prog="exeat",
        description="Run code you do not trust, and decide what it may reach.",
        epilog="Nothing is allowed unless a rule says so.\n"
        "A rule is [!]HOST[:PORTS] [OPTION...], as in\n"
        "  api.github.com              this host, ports 80 and 443\n"
        "  *.github.com:443            any subdomain, not github.com itself\n"
        "  .github.com                 github.com and any subdomain\n"
        "  [2001:db8::1]:8000-8010     an address needs a rule of its own\n"
        "  !gist.github.com            a denial beats every allowance\n"
        "\n"
        "examples:\n"
        "  exeat run --allow example.com -- curl https://example.com/\n"
        "  exeat run --name work -- bash     # a sandbox with a list that is kept\n"
        "  exeat proxy allow --name work github.com\n"
        "\n"
        "exeat COMMAND --help says more. exeat completion --help: Tab in your shell.",
        formatter_class=HelpText,
    )
    parser.add_argument("--version", action="version", version=f"exeat {exeat.__version__}")
    # With `prog` given, argparse need not format a usage to find it out: 4 ms less again.
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="exeat")
    for name, (add_options, sentence) in _COMMANDS.items():
        if wanted in _COMMANDS and wanted != name:
            continue
        command = commands.add_parser(name, help=sentence, formatter_class=HelpText)
        if wanted in (name, None):
            add_options(command)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.options import add_policy_options
    from exeat.cli.run import add_run_options, run_command

    parser.usage = "exeat run [--allow RULE]... [OPTION...] -- CMD [ARG...]"
    parser.description = (
        "Run a command in a jail. It reaches what the rules allow and nothing else,\n"
        "whether or not it knows of proxies. No root is needed."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat run --allow example.com -- curl https://example.com/\n"
        "  exeat run --name work -- bash       # rules and log are kept; exeat proxy\n"
        "  exeat run --name work --ask -- bash # unknown hosts wait for your yes or no\n"
        "  exeat run --learn -- npm install    # what would it need?\n"
        "\n"
        "exit status: the command's; 128+N if signal N ended it; 126 or 127 if it could\n"
        "not be started; 2 if exeat started nothing"
    )
    add_policy_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=lambda options, arguments: run_command(options))


def _add_proxy(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.proxy.options import add_proxy_actions

    add_proxy_actions(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.files import add_files_actions

    add_files_actions(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.options import add_policy_options, policy_sources

    parser.description = (
        "Say whether a URL would be allowed, by which rule, and what would have to\n"
        "change. Asks nobody: what a name resolves to is judged when a connection is\n"
        "made."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat check --allow .github.com https://api.github.com/\n"
        "  exeat check --name work registry.npmjs.org:443\n"
        "\n"
        "exit status: 0 allowed, 1 denied, 2 unusable"
    )
    parser.add_argument("target", metavar="URL|HOST:PORT", help="https://api.github.com/ or api.github.com:443")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--method", metavar="METHOD", default="GET", help="HTTP method for URLs (default: %(default)s)")
    parser.add_argument("--name", metavar="NAME", help="judge by the list of this sandbox too")
    add_policy_options(parser)
    parser.add_argument(
        "--secrets", "--config", metavar="FILE", action="append", default=[], help="their hosts are allowed: JSON, TOML"
    )

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.check import check, sandbox_lists

        loaded = policy_sources(options, *sandbox_lists(options.name)).load()
        return check(loaded.policy, loaded.intercept, options.target, method=options.method, as_json=options.json)

    parser.set_defaults(run=run)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.audit import add_replay_options

    add_replay_options(parser)


def _add_ui(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.ui import add_ui_options

    add_ui_options(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.serve import add_serve_options

    add_serve_options(parser)


def _add_secrets(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.secrets import add_secrets_actions

    parser.description = "Work with secrets files."
    add_secrets_actions(parser)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.description = "Work with audit logs."
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog="exeat audit")
    verify = actions.add_parser(
        "verify",
        help="find any edit, cut or reorder in a log",
        description="Check the hash chain of a log. Finds every changed, removed, added or moved\n"
        "line. A cut tail shows only against a head hash kept elsewhere (--head): the\n"
        "chain has no key.",
        epilog="exit status: 0 intact, 1 not intact, 2 unusable",
        formatter_class=HelpText,
    )
    verify.add_argument("files", metavar="FILE", nargs="+", help="the log; rotated parts oldest first, or found alone")
    verify.add_argument("--head", metavar="HASH", help="the hash that the last line must have")

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.audit import verify_logs

        return verify_logs(options.files, options.head)

    verify.set_defaults(run=run)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which jails can be had here, and why not. With --attack, try to get out of\n"
        "one: every probe runs once without a jail, where it must work, and once inside.\n"
        "Nothing is sent beyond this machine."
    )
    parser.epilog = "exit status: 0 contained, 1 something got out or nothing contains, 2 unusable"
    parser.add_argument("--attack", action="store_true", help="run the escape corpus and print a scorecard")
    parser.add_argument("--jail", choices=("netns", "nft", "env"), default="netns", help="what to attack (%(default)s)")
    parser.add_argument(
        "--class", dest="groups", metavar="NAME", action="append", default=[], help="attack by this class (repeatable)"
    )
    parser.add_argument("--nest", action="store_true", help="attack exeat run --nest, as root in a user namespace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.doctor import doctor, doctor_attack

        if options.attack:
            return doctor_attack(options.jail, options.groups, nest=options.nest, as_json=options.json)
        return doctor(as_json=options.json)

    parser.set_defaults(run=run)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.complete.completion import add_completion_options

    add_completion_options(parser, build_parser)


# Each command: what adds its options, and its line in `exeat --help`.
_COMMANDS = {
    "run": (_add_run, "run a command that reaches only what is allowed"),
    "proxy": (_add_proxy, "sandboxes with names: their rules, logs and questions"),
    "files": (_add_files, "what commands changed outside their project: see, take, forget"),
    "check": (_add_check, "say whether a URL would be allowed, and why"),
    "replay": (_add_replay, "say what a changed policy would have done"),
    "ui": (_add_ui, "show sandboxes and decisions on a local web page"),
    "serve": (_add_serve, "run the gateway alone, as a sidecar"),
    "secrets": (_add_secrets, "check a secrets file"),
    "audit": (_add_audit, "check an audit log"),
    "doctor": (_add_doctor, "say which jails this machine can enforce, and try them"),
    "completion": (_add_completion, "print a script for Tab in bash, zsh or fish"),
}
