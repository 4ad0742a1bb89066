"""The completion script for fish: one `complete` for each thing that may follow, on condition of where we are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exeat.cli.complete.completion import Flag, Place, Value

_HEAD = """\
# Completion of exeat for fish, made by `exeat completion fish`.

set -g __exeat_commands @COMMANDS@
set -g __exeat_valued @VALUED@

# Which of exeat's words are there already, without options. Behind the command that is to be run: `run --`,
# and which of the words that one is.
function __exeat_words
    set -l place
    set -l skip 0
    set -l number 1
    for word in (commandline -opc)[2..-1]
        set number (math $number + 1)
        if test $skip = 1
            set skip 0
        else if test "$word" = -- -a "$place" = run
            echo run --
            math $number + 1
            return
        else if string match -q -- '-*' $word
            contains -- "$place $word" $__exeat_valued; and set skip 1
        else if contains -- (string trim -- "$place $word") $__exeat_commands
            set place (string trim -- "$place $word")
        else if test "$place" = run
            echo run --
            echo $number
            return
        end
    end
    echo $place
end

function __exeat_at
    set -l words (__exeat_words)
    test "$words[1]" = "$argv"
end

# What the command itself would be offered.
function __exeat_command
    set -l words (__exeat_words)
    set -l before (commandline -opc)
    complete -C (string join ' ' -- (string escape -- $before[$words[2]..-1]) (commandline -ct))
end

complete -c exeat -e
complete -c exeat -f
complete -c exeat -n '__exeat_at run --' -f -a '(__exeat_command)'
"""


def fish_script(places: Sequence[Place]) -> str:
    commands = [" ".join((*place.words, name)) for place in places for name, _ in place.commands]
    valued = [
        f"{' '.join(place.words)} {name}"
        for place in places
        for flag in place.flags
        for name in flag.names
        if flag.value is not None
    ]
    head = _HEAD.replace("@COMMANDS@", " ".join(map(_quoted, commands)))
    return head.replace("@VALUED@", " ".join(map(_quoted, valued))) + "".join(map(_place, places))


def _place(place: Place) -> str:
    here = f"complete -c exeat -n {_quoted(' '.join(('__exeat_at', *place.words)))}"
    lines = [f"{here} -a {name} -d {_quoted(sentence)}" for name, sentence in place.commands]
    lines += [f"{here} {_flag(flag)}" for flag in place.flags]
    if place.argument is not None and place.argument.kind in ("file", "choice"):
        lines.append(f"{here} {_argument(place.argument)}")
    if place.argument is not None and place.argument.kind == "command":
        lines.append(f"{here} -a '(__fish_complete_command)'")
    return "\n" + "\n".join(lines) + "\n"


def _flag(flag: Flag) -> str:
    names = [f"-s {name[1:]}" if len(name) == 2 else f"-l {name.removeprefix('--')}" for name in flag.names]
    words = [*names, f"-d {_quoted(flag.sentence)}"]
    if flag.value is not None:
        words.append("-r -F" if flag.value.kind == "file" else f"-x{_offered(flag.value)}")
    return " ".join(words)


def _argument(value: Value) -> str:
    return "-F" if value.kind == "file" else f"-f{_offered(value)}"


def _offered(value: Value) -> str:
    if value.kind == "sandbox":
        return " -a '(exeat proxy ls --names 2>/dev/null)'"
    return f" -a {_quoted(' '.join(value.choices))}" if value.choices else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
