"""What running commands may reach beside the list of their sandbox. Whoever changes the list has to reckon with it."""

from __future__ import annotations

from typing import Final, NamedTuple

from exeat.errors import ConfigError
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Rule, Source
from exeat.sandbox.client import running

_ASKS: Final = "ask"


class Beside(NamedTuple):
    """The rules that running commands were given: options, files, answers.

    `asks`: one asks about what no rule lists, and somebody may say yes. `learns`: one lets it through without asking.
    `problems`: what could not be understood, in sentences. It may allow anything.
    """

    rules: tuple[Rule, ...] = ()
    asks: bool = False
    learns: bool = False
    problems: tuple[str, ...] = ()

    @property
    def lets_through(self) -> bool:
        """Whether something may get through that no rule lists, with nobody to say yes to it."""
        return self.learns or bool(self.problems)

    @property
    def may_let_through(self) -> bool:
        """The same, or somebody may say yes."""
        return self.lets_through or self.asks


def look_beside(name: str) -> Beside:
    """Ask the commands that run in a sandbox. One that is not understood is no reason to leave a list as it is."""
    found = running(name)
    rules, problems = [], []
    for text in sorted({text for each in found for text in each.other_rules}):
        try:
            rules.append(parse_rule(text, Source("a running command")))
        except ConfigError as error:
            problems.append(
                f"a running command has a rule that cannot be read here, and may still allow it: {error.public}"
            )
    if any(not each.pid for each in found):
        problems.append("a running command does not say what it allows, and may still allow it")
    modes = {each.mode for each in found if each.mode}
    return Beside(tuple(rules), _ASKS in modes, bool(modes - {_ASKS}), tuple(problems))
