"""`exeat completion`: derives a shell's completion script from the parser.

The scripts' frames lie next to this module; what depends on the parser is put into them here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FILES = frozenset({"FILE", "PATH"})
_LIST_SANDBOXES = "exeat proxy ls --names 2>/dev/null"


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


def add_completion_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script that teaches a shell to complete exeat's commands, options,\n"
        "files and names of sandboxes. Where to put it is shown below."
    )
    parser.epilog = (
        "bash:\n"
        "  mkdir -p ~/.local/share/bash-completion/completions\n"
        "  exeat completion bash > ~/.local/share/bash-completion/completions/exeat\n"
        '  (or, without bash-completion, in ~/.bashrc: eval "$(exeat completion bash)")\n'
        "zsh, for a folder that is in $fpath before compinit is called:\n"
        "  exeat completion zsh > ~/.zfunc/_exeat\n"
        "  (or in ~/.zshrc after compinit: source <(exeat completion zsh))\n"
        "fish:\n"
        "  exeat completion fish > ~/.config/fish/completions/exeat.fish\n"
        "\n"
        "Run it again after updating exeat."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from exeat.cli.main import build_parser

    print(script_for(options.shell, places_of(build_parser())), end="")
    return 0


def script_for(shell: str, places: Sequence[Place]) -> str:
    with open(f"{__file__.removesuffix('.py')}.{shell}", encoding="utf-8") as file:
        frame = file.read()
    return {"bash": _for_bash, "zsh": _for_zsh, "fish": _for_fish}[shell](frame, places)


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


def _quoted(text: str) -> str:
    """For bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _for_bash(frame: str, places: Sequence[Place]) -> str:
    """bash-completion is not needed; where it is, it completes commands. `compopt` needs bash 4, and may be missing."""
    known, values = [], []
    for place in places:
        words = " ".join(place.words)
        follows = {
            "commands": " ".join(name for name, _ in place.commands),
            "options": " ".join(name for flag in place.flags for name in flag.names),
            "argument": "" if place.argument is None else _bash_kind(place.argument),
        }
        assigned = " ".join(f"{name}={_quoted(value)}" for name, value in follows.items() if value)
        known.append(f"    {_quoted(words)}) {assigned} ;;")
        for flag in place.flags:
            if flag.value is not None:
                patterns = " | ".join(_quoted(f"{words} {name}") for name in flag.names)
                values.append(f"    {patterns}) echo {_quoted(_bash_kind(flag.value))} ;;")
    return frame.replace("@PLACES@", "\n".join(known)).replace("@VALUES@", "\n".join(values))


def _bash_kind(value: Value) -> str:
    return f"words:{' '.join(value.choices)}" if value.kind == "choice" else value.kind


def _for_zsh(frame: str, places: Sequence[Place]) -> str:
    """One function for each place, made of `_arguments`."""
    return frame.replace("@FUNCTIONS@\n", "".join(map(_zsh_function, places)) + "\n")


def _zsh_function(place: Place) -> str:
    name = "_".join(("_exeat", *place.words))
    specs = [spec for flag in place.flags for spec in _zsh_flag(flag)]
    if place.commands:
        return _zsh_chooser(name, place, specs)
    if place.argument is not None and place.argument.kind == "command":
        specs += [_quoted("(-)1:command: _command_names -e"), _quoted("*::argument: _normal")]
    elif place.argument is not None:
        specs.append(_quoted(f"*{_zsh_value(place.argument)}"))
    lines = " \\\n    ".join(specs)
    return f"\n{name}() {{\n  _arguments -S : \\\n    {lines}\n}}\n"


def _zsh_chooser(name: str, place: Place, specs: list[str]) -> str:
    """A place at which a command follows. `*::` hands the words behind it on, as if it had been typed alone."""
    lines = " \\\n    ".join((*specs, "'1: :->command'", "'*:: :->rest'"))
    them = "\n".join(f"        {_quoted(f'{command}:{sentence}')}" for command, sentence in place.commands)
    cases = "\n".join(f"        {command}) {name}_{command} && ret=0 ;;" for command, _ in place.commands)
    return (
        f"\n{name}() {{\n"
        "  local curcontext=$curcontext context state state_descr line ret=1\n"
        "  typeset -A opt_args\n"
        f"  _arguments -C -S -A '-*' : \\\n    {lines} && ret=0\n"
        "  case $state in\n"
        "    command)\n"
        "      local -a commands\n"
        f"      commands=(\n{them}\n      )\n"
        "      _describe -t commands command commands && ret=0\n"
        "      ;;\n"
        "    rest)\n"
        "      curcontext=${curcontext%:*:*}:exeat-$line[1]:\n"
        f"      case $line[1] in\n{cases}\n      esac\n"
        "      ;;\n"
        "  esac\n"
        "  return ret\n"
        "}\n"
    )


def _zsh_flag(flag: Flag) -> Iterator[str]:
    """`*` for one that may be given again; else its other names are not offered once it is there."""
    text = flag.sentence.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    before = "*" if flag.is_repeatable else f"({' '.join(flag.names)})" if len(flag.names) > 1 else ""
    for name in flag.names:
        takes, value = "", ""
        if flag.value is not None:
            takes, value = "=" if name.startswith("--") else "+", _zsh_value(flag.value)
        yield _quoted(f"{before}{name}{takes}[{text}]{value}")


def _zsh_value(value: Value) -> str:
    offered = {"file": "_files", "sandbox": "_exeat_sandboxes", "choice": f"({' '.join(value.choices)})"}.get(
        value.kind, " "
    )  # nothing to offer, but it says what is to be typed
    message = value.metavar.replace("\\", "\\\\").replace(":", "\\:")
    return f":{message}:{offered}"


def _for_fish(frame: str, places: Sequence[Place]) -> str:
    """One `complete` for each thing that may follow, on condition of where we are."""
    commands = [" ".join((*place.words, name)) for place in places for name, _ in place.commands]
    valued = [
        f"{' '.join(place.words)} {name}"
        for place in places
        for flag in place.flags
        for name in flag.names
        if flag.value is not None
    ]
    head = frame.replace("@COMMANDS@", " ".join(map(_fish_quoted, commands)))
    return head.replace("@VALUED@", " ".join(map(_fish_quoted, valued))) + "".join(map(_fish_place, places))


def _fish_place(place: Place) -> str:
    here = f"complete -c exeat -n {_fish_quoted(' '.join(('__exeat_at', *place.words)))}"
    lines = [f"-a {name} -d {_fish_quoted(sentence)}" for name, sentence in place.commands]
    lines += map(_fish_flag, place.flags)
    match place.argument:
        case Value(kind="file"):
            lines.append("-F")
        case Value(kind="choice"):
            lines.append(f"-f{_fish_offered(place.argument)}")
        case Value(kind="command"):
            lines.append("-a '(__fish_complete_command)'")
    return "".join(f"\n{here} {line}" for line in lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    names = [f"-s {name[1:]}" if len(name) == 2 else f"-l {name.removeprefix('--')}" for name in flag.names]
    words = [*names, f"-d {_fish_quoted(flag.sentence)}"]
    if flag.value is not None:
        words.append("-r -F" if flag.value.kind == "file" else f"-x{_fish_offered(flag.value)}")
    return " ".join(words)


def _fish_offered(value: Value) -> str:
    if value.kind == "sandbox":
        return f" -a '({_LIST_SANDBOXES})'"
    return f" -a {_fish_quoted(' '.join(value.choices))}" if value.choices else ""


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
