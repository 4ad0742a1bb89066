"""argparse with better messages for typos: what the user may have meant, and where it belongs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


def _untranslated(text: str | None) -> str | None:
    """argparse looks up a translation of each of its words. There is none: with a locale set, 3 ms at every start."""
    return text  # a group without a description has None here, and has to keep it


vars(argparse)["_"] = _untranslated

_MAX_SHOWN = 60
_DEFAULT_WIDTH = 80


class CommandParser(argparse.ArgumentParser):
    """For `exeat` and, since argparse makes those of the same class, for each of its commands."""

    def parse(self, words: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:
        """What `parse_args` does, and more to say about what cannot be understood."""
        self._refuse_early_option(words)
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._innermost(words)._refuse(unknown)
        return found

    def _refuse_early_option(self, words: Sequence[str]) -> None:
        """Without this, what follows it would be taken for the command."""
        option = words[0].partition("=")[0] if words else ""
        takes_commands = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        if not takes_commands or not option.startswith("-"):
            return
        if not any(known.startswith(option) for known in self._option_string_actions):
            self.error(f"unknown option {_shown(option)}; those of a command come after it: exeat run {_shown(option)}")

    def _innermost(self, words: Sequence[str]) -> CommandParser:
        """The parser of the command that the words are for."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for at, word in enumerate(words):
                    if word in action.choices:
                        inner: CommandParser = action.choices[word]
                        return inner._innermost(words[at + 1 :])
        return self

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        word = unknown[0]
        if not word.startswith("-"):
            self.error(f"unexpected argument {_shown(word)}")
        given = word.partition("=")[0]
        close = closest(f"--{given.lstrip('-')}", self._option_string_actions)
        self.error(f"unknown option {_shown(given)}{f'; did you mean {close}?' if close else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse calls this with every value that must be one of some."""
        choices = action.choices
        if choices is None or value in choices:
            return
        close = closest(str(value), choices)
        if close:
            hint = f"did you mean {close}?"
        elif isinstance(action, argparse._SubParsersAction) and self.prog == "exeat":
            hint = f"to run a program: exeat run -- {_shown(value)}"
        else:
            hint = f"choose from {', '.join(map(str, choices))}"
        raise argparse.ArgumentError(action, f"there is no {_shown(value)}; {hint}")


def closest(word: str, known: Iterable[str]) -> str:
    """What was probably meant; "" if it is like nothing."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def _shown(word: object) -> str:
    """Nothing that a terminal could stumble over."""
    text = str(word)
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


class HelpText(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every option that is added, and loads shutil for the width: 3 ms at every start."""

    def __init__(self, prog: str, *, width: int | None = None, **rest: Any) -> None:
        super().__init__(prog, width=_width() - 2 if width is None else width, **rest)

    def add_argument(self, action: argparse.Action) -> None:
        """Commands are indented once more than options. argparse forgets that, and breaks the line of the longest."""
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            length = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)


def _width() -> int:
    """As shutil.get_terminal_size does."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and len(given) < 6 and int(given) > 0:
        return int(given)
    if sys.__stdout__ is None:  # closed by the caller
        return _DEFAULT_WIDTH
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH
