"""What `exeat proxy allow`, `block` and `reset` do to a list, and what they say about it.

After `allow X` the user knows whether X is allowed. After `block X` nothing of X is, whatever other rules say.
Everything that was given is read before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from exeat.policy.covering import allows_all_of, covers, denies_all_of, meet, ports_cover, ports_meet
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import ALL_PORTS, WEB_PORTS, Rule, Source
from exeat.sandbox.allowlist import Allowlist, default_allowlist
from exeat.sandbox.folder import SandboxFolder
from exeat.sandbox.store import replace_allowlist, update_allowlist
from exeat.sandbox.typed import Typed, read_allow, read_block


class Change(NamedTuple):
    """What was done, in sentences. `still` is what stands against it, such as `line 3 (!.test) still denies it`."""

    said: tuple[str, ...]
    changed: bool
    still: tuple[str, ...] = ()


def allow(folder: SandboxFolder, texts: Sequence[str]) -> Change:
    """Allow what was typed. Raises ConfigError, and then nothing is stored."""
    typed = [read_allow(text, number) for number, text in enumerate(texts, 1)]

    def change(edit: _Edit) -> None:
        for each in typed:
            _allow(edit, each)

    return _apply(folder, change)


def block(folder: SandboxFolder, texts: Sequence[str], others: Sequence[Rule] = ()) -> Change:
    """Block what was typed. `others` are rules of running commands beside the list, which it cannot take away."""
    typed = [read_block(text, number) for number, text in enumerate(texts, 1)]
    beside = [rule for rule in others if not rule.deny]

    def change(edit: _Edit) -> None:
        for each in typed:
            _block(edit, each, beside)

    return _apply(folder, change)


def store_rule(folder: SandboxFolder, rule_text: str) -> Change:
    """Store exactly this rule, as an answer that is to hold for ever. Its opposite goes."""
    rule = parse_rule(rule_text, Source("rule"))

    def store(edit: _Edit) -> None:
        edit.remove(lambda each: each.deny != rule.deny and _about(each) == _about(rule))
        if rule in edit.rules:
            edit.said.append(f"{rule} was there already")
        else:
            edit.add(rule.text, "")
        if not rule.deny:
            _say_what_denies(edit, rule)

    return _apply(folder, store)


def reset(folder: SandboxFolder, *, empty: bool = False) -> Change:
    """Back to the default list, or to an empty one. The old list may be broken."""
    text = "" if empty else default_allowlist()
    after, changed = replace_allowlist(folder, text)
    if empty:
        return Change(("the list is empty: nothing is allowed",), changed)
    return Change((f"the list is the default list again: {len(after.rules)} rules",), changed)


class _Edit:
    """A list while it is changed, and what there is to say about it."""

    def __init__(self, listed: Allowlist) -> None:
        self.listed = listed
        self.said: list[str] = []
        self.still: list[str] = []

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.listed.rules

    def add(self, text: str, note: str) -> None:
        self.listed = self.listed.with_rule(text)
        self.said.append(f"added {text}" + (f": {note}" if note else ""))

    def remove(self, which: Callable[[Rule], bool]) -> bool:
        """Take out every rule that `which` is true for; False if there is none."""
        rules = dict.fromkeys(rule for rule in self.rules if which(rule))
        for rule in rules:
            self.listed = self.listed.without(rule)
            self.said.append(f"removed {rule}")
        return bool(rules)


def _apply(folder: SandboxFolder, change: Callable[[_Edit], None]) -> Change:
    made: list[tuple[_Edit, str]] = []

    def edit(listed: Allowlist) -> Allowlist:
        work = _Edit(listed)
        change(work)
        made.append((work, listed.text))
        return work.listed

    update_allowlist(folder, edit)
    work, before = made[-1]
    return Change(tuple(work.said), work.listed.text != before, tuple(work.still))


def _allow(edit: _Edit, typed: Typed) -> None:
    rule = typed.rule
    allows = [each for each in edit.rules if not each.deny]
    edit.remove(lambda each: each.deny and _is_undone(each, typed, allows))
    if wider := next((each for each in edit.rules if not each.deny and allows_all_of(each, rule)), None):
        edit.said.append(f"{rule} is already allowed by {_line(wider)}")
    else:
        edit.add(rule.text, typed.note)
    _say_what_denies(edit, rule)


def _is_undone(deny: Rule, typed: Typed, allows: Sequence[Rule]) -> bool:
    """Whether a deny rule is what `block` of the same text stored. Nothing else may come free with it."""
    for rule in (typed.rule, typed.exact):
        if rule is None or deny.pattern != rule.pattern or (deny.methods, deny.paths) != (rule.methods, rule.paths):
            continue
        if deny.ports == rule.ports:
            return True
        if deny.ports == ALL_PORTS:
            return all(allows_all_of(typed.rule, each) for each in allows if meet(each.pattern, deny.pattern))
    return False


def _say_what_denies(edit: _Edit, rule: Rule) -> None:
    for each in edit.rules:
        if each.deny and denies_all_of(each, rule):
            edit.still.append(f"{_line(each)} still denies it")
        elif each.deny and covers(each.pattern, rule.pattern) and ports_meet(each.ports, rule.ports):
            edit.still.append(f"{_line(each)} still denies a part of it")


def _block(edit: _Edit, typed: Typed, beside: Sequence[Rule]) -> None:
    deny = typed.rule
    removed = edit.remove(lambda each: not each.deny and _is_taken_back(each, typed))
    # Who names no port means all of them, while a rule without ports is about the web ports only.
    ports = ALL_PORTS if deny.ports == WEB_PORTS else deny.ports
    allows = [*(each for each in edit.rules if not each.deny), *beside]
    left = [each for each in allows if meet(each.pattern, deny.pattern) and ports_meet(each.ports, ports)]
    if not all(ports_cover(WEB_PORTS, each.ports) for each in left):
        deny = Rule(True, deny.pattern, ports, deny.source, methods=deny.methods, paths=deny.paths)
    if wider := next((each for each in edit.rules if each.deny and denies_all_of(each, deny)), None):
        edit.said.append(f"{deny.text[1:]} is denied by {_line(wider)} already")
    elif left:
        is_beside = any(left[0] is each for each in beside)
        who = f"{left[0]}, a rule of a running command," if is_beside else _line(left[0])
        edit.add(deny.text, f"else {who} would allow it")
    elif not removed:
        edit.add(deny.text, "no rule allowed it before")


def _is_taken_back(rule: Rule, typed: Typed) -> bool:
    """Whether an allow rule is one that `allow` of the same text stored, or is for just that host."""
    for deny in (typed.rule, typed.exact):
        if deny is None or rule.pattern != deny.pattern:
            continue
        if deny.ports == WEB_PORTS and not deny.conditional:
            return True
        if _about(rule) == _about(deny):
            return True
    return False


def _about(rule: Rule) -> tuple[object, ...]:
    return rule.pattern, rule.ports, rule.methods, rule.paths


def _line(rule: Rule) -> str:
    return f"line {rule.source.line} ({rule})" if rule.source.line is not None else f"{rule.source} ({rule})"
