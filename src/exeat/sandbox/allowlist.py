"""The allowlist of a sandbox as text that people edit, too. Pure. What an edit is not about stays byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, field

from exeat.policy.document import parse_listing
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Rule, Source


@dataclass(frozen=True, slots=True)
class Allowlist:
    """A list, read. `rules` say which line they are from. Made by `parse_allowlist_file`, never from raw text."""

    text: str
    path: str
    rules: tuple[Rule, ...] = field(compare=False, repr=False)

    def with_rule(self, text: str) -> Allowlist:
        """The rule appended as a line of its own, unless an equal rule is there. Raises ConfigError."""
        ending = "\r\n" if "\r\n" in self.text else "\n"
        whole = self.text if self.text.endswith("\n") or self.text in ("", "\ufeff") else self.text + ending
        rule = parse_rule(text.strip(" "), Source(self.path, whole.count("\n") + 1, 1))
        if rule in self.rules:
            return self
        return Allowlist(f"{whole}{text.strip(' ')}{ending}", self.path, (*self.rules, rule))

    def without(self, rule: Rule) -> Allowlist:
        """Every line with an equal rule taken out, with the comment behind it."""
        gone = {each.source.line for each in self.rules if each == rule}
        if not gone:
            return self
        *lines, last = self.text.split("\n")
        kept = [line for number, line in enumerate((*(f"{line}\n" for line in lines), last), 1) if number not in gone]
        return parse_allowlist_file("".join(kept), self.path)


def parse_allowlist_file(text: str, path: str) -> Allowlist:
    """Read a list. Raises ConfigError with file:line:column."""
    return Allowlist(text, path, parse_listing(text, path))


def default_allowlist() -> str:
    """The list that a new sandbox starts with, as it ships in the package."""
    with open(f"{__file__.rpartition('/')[0]}/default-allowlist.txt", encoding="utf-8", newline="") as file:
        return file.read()
