"""The completion script for zsh: one function for each place, made of `_arguments`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exeat.cli.complete.completion import Flag, Place, Value

_HEAD = """\
#compdef exeat
# Completion of exeat for zsh, made by `exeat completion zsh`.

_exeat_sandboxes() {
  local -a names
  names=(${(f)"$(exeat proxy ls --names 2>/dev/null)"})
  _wanted sandboxes expl sandbox compadd -a names
}
"""

_TAIL = """\

# Read by compinit it is the body of a function, called to complete something; else it is being sourced.
if [[ $funcstack[1] == _exeat ]]; then
  _exeat "$@"
else
  compdef _exeat exeat
fi
"""


def zsh_script(places: Sequence[Place]) -> str:
    return _HEAD + "".join(map(_function, places)) + _TAIL


def _function(place: Place) -> str:
    name = "_".join(("_exeat", *place.words))
    specs = [spec for flag in place.flags for spec in _flag(flag)]
    if place.commands:
        return _chooser(name, place, specs)
    if place.argument is not None:
        specs += _argument(place.argument)
    lines = " \\\n    ".join(specs)
    return f"\n{name}() {{\n  _arguments -S : \\\n    {lines}\n}}\n"


def _chooser(name: str, place: Place, specs: list[str]) -> str:
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


def _flag(flag: Flag) -> list[str]:
    """`*` for one that may be given again; else its other names are not offered once it is there."""
    sentence = f"[{_in_brackets(flag.sentence)}]"
    others = "" if len(flag.names) == 1 else f"({' '.join(flag.names)})"
    before = "*" if flag.is_repeatable else others
    specs = []
    for name in flag.names:
        takes = "" if flag.value is None else f"{'=' if name.startswith('--') else '+'}{sentence}{_value(flag.value)}"
        specs.append(_quoted(f"{before}{name}{takes or sentence}"))
    return specs


def _value(value: Value) -> str:
    return f":{_in_message(value.metavar)}:{_action(value)}"


def _argument(value: Value) -> list[str]:
    if value.kind == "command":
        return [_quoted("(-)1:command: _command_names -e"), _quoted("*::argument: _normal")]
    return [_quoted(f"*{_value(value)}")]


def _action(value: Value) -> str:
    match value.kind:
        case "file":
            return "_files"
        case "sandbox":
            return "_exeat_sandboxes"
        case "choice":
            return f"({' '.join(value.choices)})"
    return " "  # nothing to offer, but it says what is to be typed


def _in_brackets(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")


def _in_message(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
