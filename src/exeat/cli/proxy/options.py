"""`exeat proxy`: its actions and their options. What they do is in the modules next to this one: `rules` (what a
sandbox keeps: its list, and what commands may do to files), `sandboxes` (sandboxes as a whole), `questions` (what
waits for a yes or no), and in `exeat.cli.logs`."""

from __future__ import annotations

import argparse

from exeat.cli.options import SandboxActions, add_file_options, add_repeatable
from exeat.cli.proxy import questions, rules, sandboxes

DEFAULT_LINES = 40
FOLLOW_AFTER_LINES = 10
"""How many earlier lines `log -f` begins with."""


def add_proxy_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A named sandbox keeps a list of rules and a log. `exeat run --name N` runs a\n"
        "command in one. A change here reaches running commands at once, and closes\n"
        "connections that are no longer allowed."
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
        "Without --name, the sandbox called default is meant. The lists are text files;\n"
        "exeat proxy list says where."
    )
    actions = SandboxActions(parser, "exeat proxy")
    _add_rules(actions)
    _add_sandboxes(actions)
    _add_files(actions)
    _add_questions(actions)


def _add_rules(actions: SandboxActions) -> None:
    create = actions.add(
        "create",
        "create a sandbox",
        "Create a sandbox, with the list that exeat comes with or an empty one. `exeat\n"
        "run --new --name N` does the same, with --empty for an empty list.",
        lambda options: rules.create(options.name, empty=options.empty),
        epilog="exit status: 0 created; 1 the name is taken",
    )
    create.add_argument("--empty", action="store_true", help="with an empty list: nothing is allowed")
    allow = actions.add(
        "allow",
        "allow hosts from now on",
        "Add rules to a sandbox's list. A bare name covers its subdomains; =NAME is that\nhost alone.",
        lambda options: rules.allow_rules(options.name, options.rules),
        epilog="examples:\n"
        "  exeat proxy allow github.com               stores .github.com\n"
        "  exeat proxy allow =api.github.com          this host alone\n"
        "  exeat proxy allow db.example.com:5432      a port other than 80 and 443\n"
        '  exeat proxy allow "api.example.com methods=GET|HEAD"\n'
        "\n"
        "exit status: 0 allowed; 1 it is still denied, or a running command did not\n"
        "apply it; 2 nothing was changed",
    )
    allow.add_argument("rules", metavar="RULE", nargs="+", help="what to allow; one argument per rule")
    block = actions.add(
        "block",
        "block hosts from now on",
        "Remove rules from a sandbox's list. Where a wider rule still allows the host, a\n"
        "denial is added. Connections that are no longer allowed are closed.",
        lambda options: rules.block_rules(options.name, options.rules),
        epilog="examples:\n"
        "  exeat proxy block github.com\n"
        "  exeat proxy block gist.github.com          though .github.com is allowed\n"
        "\n"
        "exit status: 0 blocked; 1 it is still allowed, or a running command did not\n"
        "apply it; 2 nothing was changed",
    )
    block.add_argument("rules", metavar="RULE", nargs="+", help="what to block; one argument per rule")
    show = actions.add(
        "list",
        "show the rules",
        "Show a sandbox's list with line numbers, and where the file is. You may edit it\n"
        "by hand: running commands take a change when it is saved.",
        lambda options: rules.list_rules(options.name, as_json=options.json),
        epilog="examples:\n  exeat proxy list\n  exeat proxy list --name work --json | jq -r '.rules[].text'",
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    reset = actions.add(
        "reset",
        "return to the list that exeat comes with",
        "Replace a sandbox's list with the one that exeat comes with: package registries\n"
        "of the main languages, git hosts, OS mirrors. Asks first.",
        lambda options: rules.reset_rules(options.name, empty=options.empty, yes=options.yes),
    )
    reset.add_argument("--empty", action="store_true", help="replace it with an empty list: nothing is allowed")
    reset.add_argument("--yes", action="store_true", help="do not ask")


def _add_sandboxes(actions: SandboxActions) -> None:
    add_log_options(
        actions.add(
            "log",
            "show what was allowed and blocked",
            "Show a sandbox's decisions, newest last: time, verdict, method, place, rule or\nreason, bytes.",
            _show_log,
            epilog="examples:\n"
            "  exeat proxy log -f                         what is blocked, as it happens\n"
            "  exeat proxy log --since 10m --blocked\n"
            "  exeat proxy log --json -n 1000 | jq .host",
        )
    )
    ls = actions.add(
        "ls",
        "show all sandboxes",
        "Show all sandboxes: what runs in them, how many rules and log lines they have,\n"
        "and for running commands: requests allowed and blocked, open connections,\n"
        "open questions.",
        _list_sandboxes,
        name_help="this sandbox alone (default: all)",
        has_default=False,
        epilog="exit status: 0; 1 if something is wrong with one of them",
    )
    form = ls.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON array")
    form.add_argument("--names", action="store_true", help="print only the names, one per line")
    remove = actions.add(
        "rm",
        "remove a sandbox, its list and its log",
        "Remove a sandbox with its list and its log. Asks first. Refused while a command\nruns in it.",
        lambda options: sandboxes.remove(options.name, yes=options.yes),
    )
    remove.add_argument("--yes", action="store_true", help="do not ask")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="keep showing what is blocked, as it happens")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--blocked", action="store_true", help="only what was blocked (the default with -f)")
    what.add_argument("--all", action="store_true", help="what was allowed too (the default without -f)")
    parser.add_argument("--json", action="store_true", help="print the records as they are, one per line")
    parser.add_argument("--since", metavar="WHEN", help="since 10m, 2h, 3d, 14:30, 2025-01-31, 2025-01-31T14:30Z")
    many = f"the last N lines (default {DEFAULT_LINES}; {FOLLOW_AFTER_LINES} with -f; all with --since)"
    parser.add_argument("-n", "--lines", metavar="N", type=_count, help=many)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _show_log(options: argparse.Namespace) -> int:
    from exeat.cli.logs.view import show_log
    from exeat.sandbox.folder import open_sandbox

    with open_sandbox(options.name) as folder:
        return show_log(options, folder)


def _list_sandboxes(options: argparse.Namespace) -> int:
    return sandboxes.list_names() if options.names else sandboxes.list_all(options.name, as_json=options.json)


def _add_files(actions: SandboxActions) -> None:
    files = actions.add(
        "files",
        "show or change what commands may do to files",
        "Show what commands in a sandbox may do to files, or change it for all runs from\nthe next one on.",
        rules.keep_or_show,
        epilog="examples:\n"
        "  exeat proxy files --name work\n"
        "  exeat proxy files --name work --write ~/.cache/pip --hide ~/notes\n"
        "  exeat proxy files --name work --forget ~/notes",
    )
    add_repeatable(files, "--forget", metavar="PATH", help="remove it from every list")
    files.add_argument("--reset", action="store_true", help="clear all settings first")
    files.add_argument("--json", action="store_true", help="print one JSON object")
    add_file_options(files, "kept for every run in the sandbox; the options of a run add to it")


def _add_questions(actions: SandboxActions) -> None:
    pending = actions.add(
        "pending",
        "show open questions",
        "Show the questions of commands that run with --ask: which hosts they want to\n"
        "reach, the rule that a yes would add, and how long they will wait.",
        lambda options: questions.list_questions(options.name, as_json=options.json),
        epilog="exeat proxy approve and exeat proxy deny answer them.",
    )
    pending.add_argument("--json", action="store_true", help="print one JSON array")
    for action, word, sentence, stored in (
        ("approve", "yes", "answer yes to open questions", "the rule"),
        ("deny", "no", "answer no to open questions", "a denial"),
    ):
        parser = actions.add(
            action,
            sentence,
            f"Answer {word} to questions of commands that run with --ask. Without an ID or HOST,\n"
            "answers the only open question.",
            _approve if action == "approve" else _deny,
            epilog="examples:\n"
            f"  exeat proxy {action}\n"
            f"  exeat proxy {action} 1-3 1-4              by ID\n"
            f"  exeat proxy {action} --always api.foo.test\n"
            "\n"
            "exit status: 0 done; 1 no such question, or it is not clear which",
        )
        parser.add_argument(
            "questions", metavar="ID|HOST[:PORT]", nargs="*", help="an ID from exeat proxy pending, or a host"
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--once", action="store_true", help="until the command ends (the default)")
        which.add_argument("--always", action="store_true", help=f"and store {stored} in the sandbox's list")


def _approve(options: argparse.Namespace) -> int:
    return questions.answer_questions(options.name, options.questions, allow=True, always=options.always)


def _deny(options: argparse.Namespace) -> int:
    return questions.answer_questions(options.name, options.questions, allow=False, always=options.always)
