"""Allowlists as plain text: one rule a line, `#` comments, blank lines. Text in, values out; no file is opened.

A list is read whole or refused whole, as every policy. A comment is a whole line, or what follows a rule behind
a blank and `#`. Only a line feed ends a line, whatever else an editor may take for an end: what looks like a rule
in a review is one, or the list is an error.
"""

from __future__ import annotations

import re

from exeat.errors import ConfigError
from exeat.policy.grammar import read_rule
from exeat.policy.host import shown
from exeat.policy.options import RuleError
from exeat.policy.rule import Rule, Source

MAX_LISTING = 8 * 1024 * 1024  # characters

_LINE_FEED = "\n"
_BLANKS = " \t\r"
_COMMENT = re.compile(r"[ \t]#")
# A carriage return only before a line feed; no escape codes that recolour or hide a line when it is shown.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]|\r(?!\n)")


def parse_listing(text: str, filename: str) -> tuple[Rule, ...]:
    """The rules of a list, in order, each with its line. Raises ConfigError with file:line:column."""
    if len(text) > MAX_LISTING:
        raise ConfigError("the file is over 8 MiB", where=filename, expected="an allowlist, one rule a line")
    if bad := _CONTROL.search(text):
        start = text.rfind(_LINE_FEED, 0, bad.start()) + 1
        raise ConfigError(
            f"the file contains the character {shown(bad[0])}",
            where=f"{filename}:{text.count(_LINE_FEED, 0, start) + 1}:{bad.start() - start + 1}",
            expected="plain text, one rule a line",
        )
    rules = []
    for number, line in enumerate(text.removeprefix("\ufeff").split(_LINE_FEED), 1):
        rule = rule_part(line) if "#" in line else line.strip(_BLANKS)
        if rule:
            try:
                rules.append(read_rule(rule, Source(filename, number)))
            except RuleError as fault:
                column = line.index(rule) + fault.offset + 1
                raise ConfigError(
                    fault.public, where=f"{filename}:{number}:{column}", expected=fault.expected
                ) from None
    return tuple(rules)


def rule_part(line: str) -> str:
    """What is left of a line without its comment and the blanks around it; "" if it has no rule."""
    if line.lstrip(_BLANKS).startswith("#"):
        return ""
    comment = _COMMENT.search(line)
    return (line[: comment.start()] if comment else line).strip(_BLANKS)
