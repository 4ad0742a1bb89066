"""The completion script for bash. bash-completion is not needed; where it is, it completes commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exeat.cli.complete.completion import Place, Value

_SCRIPT = """\
# Completion of exeat for bash, made by `exeat completion bash`.

_exeat_place() { # what may follow the words in $1
  commands= options= argument=
  case $1 in
@PLACES@
  esac
}

_exeat_value() { # what the option $2 takes behind the words in $1; fails if it takes nothing
  case "$1 $2" in
@VALUES@
    *) return 1 ;;
  esac
}

_exeat_offer() { # complete $2 by what $1 says
  local word
  case $1 in
    file)
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$2")
      ;;
    sandbox) COMPREPLY+=($(compgen -W "$(exeat proxy ls --names 2>/dev/null)" -- "$2")) ;;
    command)
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -c -- "$2")
      ;;
    words:*) COMPREPLY+=($(compgen -W "${1#words:}" -- "$2")) ;;
  esac
}

_exeat_command() { # the command that exeat is to run begins at word $1
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif ((COMP_CWORD == $1)); then
    _exeat_offer command "${COMP_WORDS[COMP_CWORD]}"
  else
    _exeat_offer file "${COMP_WORDS[COMP_CWORD]}"
  fi
}

_exeat() {
  local current=${COMP_WORDS[COMP_CWORD]} place= option= kind= commands options argument word number
  COMPREPLY=()
  _exeat_place ''
  for ((number = 1; number < COMP_CWORD; number++)); do
    word=${COMP_WORDS[number]}
    if [[ -n $option ]]; then
      [[ $word == '=' ]] || option= # bash takes --name=x apart: --name, =, x
    elif [[ $word == -- ]]; then
      if [[ $argument == command ]]; then
        _exeat_command $((number + 1))
        return
      fi
    elif [[ $word == -* ]]; then
      [[ $word != *=* ]] && _exeat_value "$place" "$word" >/dev/null && option=$word
    elif [[ " $commands " == *" $word "* ]]; then
      place=${place:+$place }$word
      _exeat_place "$place"
    elif [[ $argument == command ]]; then
      _exeat_command "$number"
      return
    fi
  done
  if [[ -n $option ]]; then
    [[ $current == '=' ]] && current=
    _exeat_offer "$(_exeat_value "$place" "$option")" "$current"
  elif [[ $current == --*=* ]] && kind=$(_exeat_value "$place" "${current%%=*}"); then
    _exeat_offer "$kind" "${current#*=}"
    COMPREPLY=("${COMPREPLY[@]/#/${current%%=*}=}")
  elif [[ $current == -* ]]; then
    _exeat_offer "words:$options" "$current"
  elif [[ -n $commands ]]; then
    _exeat_offer "words:$commands" "$current"
  elif [[ $argument == command ]]; then
    _exeat_command "$COMP_CWORD"
  else
    _exeat_offer "$argument" "$current"
  fi
}

complete -F _exeat exeat
"""


def bash_script(places: Sequence[Place]) -> str:
    """Needs bash 4 for `compopt`; in older ones files are completed without it."""
    places_text, values_text = [], []
    for place in places:
        words = " ".join(place.words)
        commands = " ".join(name for name, _ in place.commands)
        options = " ".join(name for flag in place.flags for name in flag.names)
        argument = "" if place.argument is None else _kind(place.argument)
        places_text.append(
            f"    {_quoted(words)}) {_assigned(commands=commands, options=options, argument=argument)} ;;"
        )
        for flag in place.flags:
            if flag.value is not None:
                patterns = " | ".join(_quoted(f"{words} {name}") for name in flag.names)
                values_text.append(f"    {patterns}) echo {_quoted(_kind(flag.value))} ;;")
    return _SCRIPT.replace("@PLACES@", "\n".join(places_text)).replace("@VALUES@", "\n".join(values_text))


def _kind(value: Value) -> str:
    return f"words:{' '.join(value.choices)}" if value.kind == "choice" else value.kind


def _assigned(**values: str) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in values.items() if value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
