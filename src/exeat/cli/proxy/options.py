"""`exeat proxy`: its actions and their options. What they do is in the modules beside this one, by reason:
proxy_rules (a sandbox's list), proxy_sandboxes (sandboxes as a whole), proxy_files (what it keeps about files),
proxy_questions (what waits for a yes or no)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from exeat.cli.parser import HelpText

if TYPE_CHECKING:
    _Actions = argparse._SubParsersAction[argparse.ArgumentParser]

_DEFAULT_NAME = "default"  # exeat.sandbox.folder has it too; help does without loading that
_NAME_HELP = f"the sandbox (default: {_DEFAULT_NAME})"


def add_proxy_actions(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sandboxes that have a name keep a list of rules and a log. `exeat run --name N`\n"
        "runs a command in one. A change here reaches the commands that run in it at\n"
        "once, and closes connections that are no longer allowed."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat proxy create --name work\n"
        "  exeat proxy allow github.com               github.com and its subdomains\n"
        "  exeat proxy block gist.github.com          though .github.com is allowed\n"
        "  exeat proxy list --name work\n"
        "  exeat proxy log -f                         what is blocked, as it happens\n"
        "  exeat proxy approve --always api.foo.test  an answer for exeat run --ask\n"
        "\n"
        "Without --name they are about the sandbox called default. The lists are text\n"
        "files; exeat proxy list says where."
    )
    parser.add_argument("--name", metavar="NAME", help=_NAME_HELP)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog="exeat proxy")
    _add_rules(actions)
    _add_sandboxes(actions)
    _add_questions(actions)


def _add(
    actions: _Actions,
    action: str,
    sentence: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    name_help: str = _NAME_HELP,
    **more: Any,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        action,
        help=sentence,
        description=description,
        formatter_class=HelpText,
        **more,
    )
    # Also before the action. What stands there must not be overwritten by a default from here.
    parser.add_argument("--name", metavar="NAME", default=argparse.SUPPRESS, help=name_help)

    def call(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        if options.name is None and action != "ls":
            options.name = _DEFAULT_NAME
        return run(options)

    parser.set_defaults(run=call)
    return parser


def _add_rules(actions: _Actions) -> None:
    make = _add(
        actions,
        "create",
        "make a sandbox",
        "Make a sandbox, with the list that exeat comes with or an empty one. So does\n"
        "`exeat run --new --name N`, with --empty for an empty one.",
        _create,
        epilog="exit status: 0 made; 1 there is one of that name",
    )
    make.add_argument("--empty", action="store_true", help="with an empty list: nothing is allowed")
    allow = _add(
        actions,
        "allow",
        "allow hosts, from now on",
        "Add rules to a sandbox's list. A bare name covers its subdomains; =NAME is that\nhost alone.",
        _allow,
        epilog="examples:\n"
        "  exeat proxy allow github.com               stores .github.com\n"
        "  exeat proxy allow =api.github.com          this host alone\n"
        "  exeat proxy allow db.example.com:5432      another port than 80 and 443\n"
        '  exeat proxy allow "api.example.com methods=GET|HEAD"\n'
        "\n"
        "exit status: 0 allowed; 1 it is still denied, or a running command did not take\n"
        "it; 2 nothing was changed",
    )
    allow.add_argument("rules", metavar="RULE", nargs="+", help="what to allow; one argument for each rule")
    block = _add(
        actions,
        "block",
        "block hosts, from now on",
        "Take rules from a sandbox's list. Where a wider rule still allows the host, a\n"
        "denial is added. Connections that are no longer allowed are closed.",
        _block,
        epilog="examples:\n"
        "  exeat proxy block github.com\n"
        "  exeat proxy block gist.github.com          though .github.com is allowed\n"
        "\n"
        "exit status: 0 blocked; 1 it is still allowed, or a running command did not take\n"
        "it; 2 nothing was changed",
    )
    block.add_argument("rules", metavar="RULE", nargs="+", help="what to block; one argument for each rule")
    show = _add(
        actions,
        "list",
        "show the rules",
        "Show a sandbox's list, with line numbers, and say where the file is. It may be\n"
        "edited by hand: running commands take a change when it is saved.",
        _list,
        epilog="examples:\n  exeat proxy list\n  exeat proxy list --name work --json | jq -r '.rules[].text'",
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    reset = _add(
        actions,
        "reset",
        "return to the list that exeat comes with",
        "Replace a sandbox's list by the one that exeat comes with: package registries of\n"
        "the main languages, git hosts, OS mirrors. Asks before.",
        _reset,
    )
    reset.add_argument("--empty", action="store_true", help="replace it by an empty list: nothing is allowed")
    reset.add_argument("--yes", action="store_true", help="do not ask")


def _add_sandboxes(actions: _Actions) -> None:
    from exeat.cli.logs.log import add_log_options

    log = _add(
        actions,
        "log",
        "show what was allowed and blocked",
        "Show a sandbox's decisions, the newest last: time, verdict, method, place, rule\nor reason, bytes.",
        _log,
        epilog="examples:\n"
        "  exeat proxy log -f                         what is blocked, as it happens\n"
        "  exeat proxy log --since 10m --blocked\n"
        "  exeat proxy log --json -n 1000 | jq .host",
    )
    add_log_options(log)
    ls = _add(
        actions,
        "ls",
        "show all sandboxes",
        "Show all sandboxes: what runs in them, how many rules and lines of log they\n"
        "have, and of what runs: how much was allowed and blocked, connections that are\n"
        "open, questions that wait.",
        _ls,
        name_help="this sandbox alone (default: all)",
        epilog="exit status: 0; 1 if something is wrong with one of them",
    )
    form = ls.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON array")
    form.add_argument("--names", action="store_true", help="print the names alone, one a line")
    remove = _add(
        actions,
        "rm",
        "remove a sandbox, its list and its log",
        "Remove a sandbox: its list and its log. Asks before. Refused while a command\nruns in it.",
        _rm,
    )
    remove.add_argument("--yes", action="store_true", help="do not ask")

    _add_files(actions)


def _add_files(actions: _Actions) -> None:
    from exeat.cli.options import add_file_options

    files = _add(
        actions,
        "files",
        "what commands may do to files",
        "Show what commands in a sandbox may do to files, or change it for all runs from\nthe next one on.",
        _files,
        epilog="examples:\n"
        "  exeat proxy files --name work\n"
        "  exeat proxy files --name work --write ~/.cache/pip --hide ~/notes\n"
        "  exeat proxy files --name work --forget ~/notes",
    )
    files.add_argument("--forget", metavar="PATH", action="append", default=[], help="take it out of every list")
    files.add_argument("--reset", action="store_true", help="forget all that was kept, before anything is added")
    files.add_argument("--json", action="store_true", help="print one JSON object")
    add_file_options(files, "kept for every run in the sandbox, whose own options add to it")


def _add_questions(actions: _Actions) -> None:
    pending = _add(
        actions,
        "pending",
        "show what waits for a yes or no",
        "Show the questions of commands that run with --ask: which hosts they want to\n"
        "reach, the rule that a yes would add, and how long they wait yet.",
        _pending,
        epilog="exeat proxy approve and exeat proxy deny answer them.",
    )
    pending.add_argument("--json", action="store_true", help="print one JSON array")
    for action, sentence, description, always in (
        (
            "approve",
            "let what waits go on",
            "Say yes to questions of commands that run with --ask. Without an ID or HOST: to\nthe one that is open.",
            "and store the rule in the sandbox's list",
        ),
        (
            "deny",
            "refuse what waits",
            "Say no to questions of commands that run with --ask. Without an ID or HOST: to\nthe one that is open.",
            "and store a denial in the sandbox's list",
        ),
    ):
        parser = _add(
            actions,
            action,
            sentence,
            description,
            _answer(action),
            epilog="examples:\n"
            f"  exeat proxy {action}\n"
            f"  exeat proxy {action} 1-3 1-4              by ID\n"
            f"  exeat proxy {action} --always api.foo.test\n"
            "\n"
            "exit status: 0 done; 1 no such question, or it is not clear which",
        )
        parser.add_argument(
            "questions", metavar="ID|HOST[:PORT]", nargs="*", help="which: an ID of exeat proxy pending, or a host"
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--once", action="store_true", help="until the command ends (this is the default)")
        which.add_argument("--always", action="store_true", help=always)


# Each loads what it needs when it is called: `exeat proxy list` has 120 ms.


def _create(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import create

    return create(options.name, empty=options.empty)


def _allow(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import allow_rules

    return allow_rules(options.name, options.rules)


def _block(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import block_rules

    return block_rules(options.name, options.rules)


def _list(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import list_rules

    return list_rules(options.name, as_json=options.json)


def _reset(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import reset_rules

    return reset_rules(options.name, empty=options.empty, yes=options.yes)


def _log(options: argparse.Namespace) -> int:
    from exeat.cli.logs.log import show_log
    from exeat.sandbox.folder import open_sandbox

    with open_sandbox(options.name) as folder:
        return show_log(options, folder)


def _ls(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.sandboxes import list_all, list_names

    return list_names() if options.names else list_all(options.name, as_json=options.json)


def _rm(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.sandboxes import remove

    return remove(options.name, yes=options.yes)


def _files(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.rules import keep_or_show

    return keep_or_show(options)


def _pending(options: argparse.Namespace) -> int:
    from exeat.cli.proxy.questions import list_questions

    return list_questions(options.name, as_json=options.json)


def _answer(action: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from exeat.cli.proxy.questions import answer_questions

        return answer_questions(options.name, options.questions, allow=action == "approve", always=options.always)

    return run
