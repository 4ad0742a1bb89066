"""`exeat files`: its options. What commands in a sandbox changed outside their project: see it, keep it, discard it."""

from __future__ import annotations

import argparse

from exeat.cli.options import SandboxActions


def add_files_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What a command of `exeat run --name N` writes outside its project stays in a\n"
        "layer of the sandbox N: the next command there sees it, the machine does not.\n"
        "Look at it here, copy what you want to the machine, or discard it."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat files diff --name work                 what has changed\n"
        "  exeat files diff --name work --text ~/.npmrc and how\n"
        "  exeat files apply --name work ~/.local/bin/tool\n"
        "  exeat files discard --name work ~/.cache     discard this\n"
        "  exeat files discard --name work              discard all of it\n"
        "\n"
        "Without --name, the sandbox called default is meant."
    )
    actions = SandboxActions(parser, "exeat files")
    diff = actions.add(
        "diff",
        "list what has changed, or show how text files differ",
        "List the paths that the layers of a sandbox add (A), change (M) or remove (D),\n"
        "compared with the machine as it is now. A new folder is one line, unless paths\n"
        "or --all are given.",
        _diff,
        epilog="exit status: 0, whether or not there is something to list; 2 bad arguments",
    )
    diff.add_argument("paths", metavar="PATH", nargs="*", help="these paths and everything below them (default: all)")
    diff.add_argument("--text", action="store_true", help="show how text files differ")
    diff.add_argument("--all", action="store_true", help="list what is in new folders, too")
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    apply = actions.add(
        "apply",
        "copy chosen paths to the machine",
        "Copy paths from the layers of a sandbox to the machine. Lists first what\n"
        "it will overwrite or remove. A link is copied as a link and never\n"
        "followed, no file gets a set-user-ID bit, and every file takes its place in one\n"
        "step. The layer keeps its copy: discard removes it.",
        _apply,
        epilog="exit status: 0 done; 1 a path was skipped, or there was nothing to do;\n2 bad arguments",
    )
    apply.add_argument("paths", metavar="PATH", nargs="*", help="these paths and everything below them")
    apply.add_argument("--all", action="store_true", help="everything that diff lists")
    apply.add_argument("--yes", action="store_true", help="do not ask")
    discard = actions.add(
        "discard",
        "discard what has changed",
        "Discard the changes that the layers of a sandbox hold, at some paths and below\n"
        "them or everywhere. The next command there sees the machine's own files again.\n"
        "Nothing on the machine changes.",
        _discard,
        epilog="exit status: 0 discarded; 1 there was nothing to do, or a command still runs;\n2 bad arguments",
    )
    discard.add_argument(
        "paths", metavar="PATH", nargs="*", help="these paths and everything below them (default: all)"
    )
    discard.add_argument("--yes", action="store_true", help="do not ask")


def _diff(options: argparse.Namespace) -> int:
    from exeat.cli.layers import show_differences

    return show_differences(options.name, options.paths, text=options.text, every=options.all, as_json=options.json)


def _apply(options: argparse.Namespace) -> int:
    from exeat.cli.layers import apply_paths

    return apply_paths(options.name, options.paths, every=options.all, yes=options.yes)


def _discard(options: argparse.Namespace) -> int:
    from exeat.cli.layers import discard_paths

    return discard_paths(options.name, options.paths, yes=options.yes)
