"""`exeat files`: what commands in a sandbox changed outside their project: shown, copied to the machine, forgotten."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from exeat.cli.parser import HelpText

_DEFAULT_NAME = "default"


def add_files_actions(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What a command of `exeat run --name N` writes outside its project stays in a\n"
        "layer of the sandbox N: the next one there sees it, the machine does not. Look\n"
        "at it here, copy what you want to the machine, or forget it."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat files diff --name work                 what has changed\n"
        "  exeat files diff --name work --text ~/.npmrc and how\n"
        "  exeat files apply --name work ~/.local/bin/tool\n"
        "  exeat files discard --name work ~/.cache     forget this\n"
        "  exeat files discard --name work              forget all of it\n"
        "\n"
        "Without --name they are about the sandbox called default."
    )
    parser.add_argument("--name", metavar="NAME", help=f"the sandbox (default: {_DEFAULT_NAME})")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog="exeat files")
    for add in (_add_diff, _add_apply, _add_discard):
        action, run = add(actions)
        # Also before the action. What stands there must not be overwritten by a default from here.
        action.add_argument(
            "--name", metavar="NAME", default=argparse.SUPPRESS, help=f"the sandbox (default: {_DEFAULT_NAME})"
        )
        action.set_defaults(run=_caller(run))


_Run = Callable[[argparse.Namespace], int]


def _caller(run: _Run) -> Callable[[argparse.Namespace, Sequence[str]], int]:
    def call(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        options.name = options.name or _DEFAULT_NAME
        return run(options)

    return call


def _add_diff(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> tuple[argparse.ArgumentParser, _Run]:
    parser = actions.add_parser(
        "diff",
        help="list what has changed, or show how text files differ",
        description="List the paths that the layers of a sandbox add (A), change (M) or remove (D),\n"
        "against the machine as it is now. A new folder is one line, unless paths or\n"
        "--all are given.",
        epilog="exit status: 0, whether or not there is something to list; 2 unusable",
        formatter_class=HelpText,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="these and what is below them (default: all)")
    parser.add_argument("--text", action="store_true", help="show how text files differ")
    parser.add_argument("--all", action="store_true", help="list what is in new folders, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(options: argparse.Namespace) -> int:
        from exeat.cli.layers import show_differences

        return show_differences(options.name, options.paths, text=options.text, every=options.all, as_json=options.json)

    return parser, run


def _add_apply(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> tuple[argparse.ArgumentParser, _Run]:
    parser = actions.add_parser(
        "apply",
        help="copy chosen paths to the machine",
        description="Copy paths from the layers of a sandbox to the machine. What would be\n"
        "overwritten or removed is named first. A link is copied as a link and never\n"
        "followed, no file gets a set-user-ID bit, and every file takes its place in one\n"
        "step. The layer keeps its copy: discard forgets it.",
        epilog="exit status: 0 done; 1 something was left, or nothing was to be done; 2 unusable",
        formatter_class=HelpText,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="these and what is below them")
    parser.add_argument("--all", action="store_true", help="everything that diff lists")
    parser.add_argument("--yes", action="store_true", help="do not ask")

    def run(options: argparse.Namespace) -> int:
        from exeat.cli.layers import apply_paths

        return apply_paths(options.name, options.paths, every=options.all, yes=options.yes)

    return parser, run


def _add_discard(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> tuple[argparse.ArgumentParser, _Run]:
    parser = actions.add_parser(
        "discard",
        help="forget what has changed",
        description="Forget what the layers of a sandbox have at some paths and below them, or all\n"
        "of it. The next command there sees the machine's own files again. Nothing on\n"
        "the machine is changed.",
        epilog="exit status: 0 forgotten; 1 nothing was to be done, or a command still runs;\n2 unusable",
        formatter_class=HelpText,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="these and what is below them (default: all)")
    parser.add_argument("--yes", action="store_true", help="do not ask")

    def run(options: argparse.Namespace) -> int:
        from exeat.cli.layers import discard_paths

        return discard_paths(options.name, options.paths, yes=options.yes)

    return parser, run
