"""The `exeat` command: parse, call, print. Exit status 2 means that nothing was started."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
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
        gc.enable()
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
    for name, (module, sentence) in _COMMANDS.items():
        if wanted in _COMMANDS and wanted != name:
            continue
        command = commands.add_parser(name, help=sentence, formatter_class=HelpText)
        if wanted in (name, None):
            getattr(import_module(f"exeat.cli.{module}"), f"add_{name}_options")(command)
    return parser


# Each command: the module that has its options, as `add_NAME_options`, and its line in `exeat --help`.
_COMMANDS = {
    "run": ("run", "run a command that reaches only what is allowed"),
    "proxy": ("proxy.options", "manage named sandboxes: their rules, logs and questions"),
    "files": ("files", "see, keep or discard what commands changed outside their project"),
    "vm": ("vm.commands", "save a booted virtual machine, for faster starts"),
    "check": ("check", "say whether a URL would be allowed, and why"),
    "replay": ("audit", "say what a changed policy would have decided"),
    "ui": ("ui", "show sandboxes and decisions on a local web page"),
    "serve": ("serve", "run the gateway alone, as a sidecar"),
    "image": ("container.image", "build images of exeat itself"),
    "secrets": ("secrets", "check a secrets file"),
    "audit": ("audit", "check an audit log"),
    "doctor": ("doctor", "say which jails this machine can enforce, and test them"),
    "completion": ("completion", "print a completion script for bash, zsh or fish"),
}
