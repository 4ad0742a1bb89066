"""`exeat completion`: what may follow what on the command line, read from the parser, as a script for a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_FILES = frozenset({"FILE", "PATH"})


class Value(NamedTuple):
    """What an option or an argument takes. `kind` is file, sandbox, choice, command or other."""

    kind: str
    metavar: str = ""
    choices: tuple[str, ...] = ()


class Flag(NamedTuple):
    """An option, by all its names. `value` is None if it takes none."""

    names: tuple[str, ...]
    value: Value | None
    sentence: str
    is_repeatable: bool


class Place(NamedTuple):
    """Behind which words we are (`proxy`, `allow`), and what may follow there."""

    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    flags: tuple[Flag, ...]
    argument: Value | None


def add_completion_options(
    parser: argparse.ArgumentParser, build_parser: Callable[[], argparse.ArgumentParser]
) -> None:
    parser.description = (
        "Print a script that teaches a shell to complete exeat's commands, options,\n"
        "files and names of sandboxes. Where to put it is said below."
    )
    parser.epilog = (
        "bash:\n"
        "  mkdir -p ~/.local/share/bash-completion/completions\n"
        "  exeat completion bash > ~/.local/share/bash-completion/completions/exeat\n"
        '  (or, without bash-completion, in ~/.bashrc: eval "$(exeat completion bash)")\n'
        "zsh, for a folder that is in $fpath before compinit is called:\n"
        "  exeat completion zsh > ~/.zfunc/_exeat\n"
        "  (or in ~/.zshrc behind compinit: source <(exeat completion zsh))\n"
        "fish:\n"
        "  exeat completion fish > ~/.config/fish/completions/exeat.fish\n"
        "\n"
        "Do it again after an update of exeat."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        print(script_for(options.shell, places_of(build_parser())), end="")
        return 0

    parser.set_defaults(run=run)


def script_for(shell: str, places: Sequence[Place]) -> str:
    """The script."""
    if shell == "bash":
        from exeat.cli.complete.bash import bash_script

        return bash_script(places)
    if shell == "zsh":
        from exeat.cli.complete.zsh import zsh_script

        return zsh_script(places)
    from exeat.cli.complete.fish import fish_script

    return fish_script(places)


def places_of(parser: argparse.ArgumentParser) -> list[Place]:
    """Every place on the command line: the program itself, its commands, their actions."""
    return list(_walk(parser, ()))


def _walk(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Place]:
    flags: list[Flag] = []
    argument: Value | None = None
    commands: tuple[tuple[str, str], ...] = ()
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            sentences = {each.dest: each.help or "" for each in action._choices_actions}
            commands = tuple((name, sentences.get(name, "")) for name in action.choices)
            below = list(action.choices.items())
        elif action.help is argparse.SUPPRESS:
            continue
        elif action.option_strings:
            value = None if action.nargs == 0 else _value(action)
            repeatable = isinstance(action, argparse._AppendAction)
            flags.append(Flag(tuple(action.option_strings), value, _sentence(action), repeatable))
        elif argument is None:
            argument = _value(action)
    yield Place(words, commands, tuple(flags), argument)
    for name, child in below:
        yield from _walk(child, (*words, name))


def _value(action: argparse.Action) -> Value:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.choices is not None:
        return Value("choice", action.dest, tuple(map(str, action.choices)))
    if "--name" in action.option_strings:
        return Value("sandbox", "sandbox")
    if action.nargs == argparse.REMAINDER:
        return Value("command", metavar)
    return Value("file" if metavar in _FILES or metavar.endswith("FILE") else "other", metavar)


def _sentence(action: argparse.Action) -> str:
    """The help of an option, on one line. `%%` and `%(default)s` are argparse's own."""
    return " ".join(((action.help or "") % {**vars(action), "prog": "exeat"}).split())
