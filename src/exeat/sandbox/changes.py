"""The changes that `exeat proxy allow`, `block` and `reset` make to a list, and their messages.

After `allow X` the user knows whether X is allowed, and nothing else has come free. After `block X` nothing of X is
allowed, whatever other rules say.
Everything that was given is read before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from exeat.policy.grammar import parse_rule
from exeat.policy.rule import (
    ALL_PORTS,
    WEB_PORTS,
    Rule,
    Scope,
    Source,
    allows_all_of,
    covers,
    denial_covers,
    denial_meets,
    denies_all_of,
    ports_cover,
    ports_meet,
    ports_without,
)
from exeat.sandbox.allowlist import Allowlist, replace_allowlist, update_allowlist
from exeat.sandbox.folder import SandboxFolder, default_allowlist
from exeat.sandbox.placeholders import forget_placeholders
from exeat.sandbox.typed import Typed, read_allow, read_block
from exeat.values import replace

_MAX_SAID: Final = 5


class Change(NamedTuple):
    """What was done, in sentences. `still` is what stands against it, such as `line 3 (!.test) still denies it`."""

    said: tuple[str, ...]
    changed: bool
    still: tuple[str, ...] = ()


def allow(
    folder: SandboxFolder, texts: Sequence[str], others: Sequence[Rule] = (), *, unlisted: bool = False
) -> Change:
    """Allow what was typed, and nothing else: not by the list, nor by `others`, rules of running commands next to it.

    `unlisted`: a running command lets through what no rule denies. Raises ConfigError, and then nothing is stored.
    """
    typed = [read_allow(text, number) for number, text in enumerate(texts, 1)]

    def change(edit: _Edit) -> None:
        for each in typed:
            _allow(edit, each, others, unlisted=unlisted)

    return _apply(folder, change)


def block(
    folder: SandboxFolder, texts: Sequence[str], others: Sequence[Rule] = (), *, unlisted: bool = False
) -> Change:
    """Block what was typed. `others` are rules of running commands next to the list, which it cannot take away.

    `unlisted`: a running command may let through what no rule lists, so that it is not enough to take a rule out.
    """
    typed = [read_block(text, number) for number, text in enumerate(texts, 1)]
    other_allows = [rule for rule in others if not rule.deny]

    def change(edit: _Edit) -> None:
        for each in typed:
            _block(edit, each, other_allows, unlisted=unlisted)

    return _apply(folder, change)


def store_rule(folder: SandboxFolder, rule_text: str, others: Sequence[Rule] = (), *, unlisted: bool = False) -> Change:
    """Store exactly this rule, as an answer that is to hold for ever. Its opposite goes, if it is no more than that."""
    rule = parse_rule(rule_text, Source("rule"))

    def store(edit: _Edit) -> None:
        is_more = rule.pattern.scope is Scope.ANY and (unlisted or _allow_addresses((*edit.rules, *others)))
        if rule.deny or not is_more:
            edit.remove(lambda each: each.deny != rule.deny and _about(each) == _about(rule))
        if rule in edit.rules:
            edit.said.append(f"{rule} is already in the list")
        else:
            edit.add(rule.text, "")
        if not rule.deny:
            _say_what_denies(edit, rule, others)

    return _apply(folder, store)


def reset(folder: SandboxFolder, *, empty: bool = False) -> Change:
    """Back to the default list, or to an empty one. The old list may be broken. Placeholders of secrets go as well."""
    text = "" if empty else default_allowlist()
    forget_placeholders(folder)
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


def _allow(edit: _Edit, typed: Typed, others: Sequence[Rule], *, unlisted: bool) -> None:
    rule = typed.rule
    _take_back_denials(edit, typed, others, unlisted=unlisted)
    if wider := next((each for each in edit.rules if not each.deny and allows_all_of(each, rule)), None):
        edit.said.append(f"{rule} is already allowed by {_line(wider)}")
    else:
        edit.add(rule.text, typed.note)
    _say_what_denies(edit, rule, others)


def _take_back_denials(edit: _Edit, typed: Typed, others: Sequence[Rule], *, unlisted: bool) -> None:
    """Take out what `block` of the same text stored. Of a denial of more ports, what was not typed stays in force."""
    wanted = typed.rule.ports
    allows = [each for each in (*edit.rules, *others) if not each.deny]
    for deny in dict.fromkeys(each for each in edit.rules if each.deny and _is_for_same(each, typed)):
        if deny.pattern.scope is Scope.ANY and (unlisted or _allow_addresses(allows)):
            continue  # it denies addresses, and they were not typed
        if wanted in (deny.ports, ALL_PORTS):
            edit.remove(deny.__eq__)
        elif ports_cover(deny.ports, wanted):
            rest = ports_without(deny.ports, wanted)
            freed = [each for each in allows if denial_meets(deny.pattern, each.pattern)]
            is_needed = unlisted or any(ports_meet(each.ports, rest) for each in freed)
            edit.remove(deny.__eq__)
            if is_needed or deny.ports != ALL_PORTS:
                for part in (replace(deny, ports=(ports,)) for ports in rest):
                    if part not in edit.rules:
                        edit.add(part.text, "these ports stay denied")


def _is_for_same(deny: Rule, typed: Typed) -> bool:
    """Whether a denial is for just the hosts that were typed, and for the same requests to them."""
    return any(
        rule is not None and (deny.pattern, deny.methods, deny.paths) == (rule.pattern, rule.methods, rule.paths)
        for rule in (typed.rule, typed.exact)
    )


def _allow_addresses(rules: Iterable[Rule]) -> bool:
    return any(each.pattern.scope is Scope.NETWORK for each in rules if not each.deny)


def _say_what_denies(edit: _Edit, rule: Rule, others: Sequence[Rule]) -> None:
    inside = []
    for each in (*edit.rules, *others):
        if not each.deny or not ports_meet(each.ports, rule.ports):
            continue
        if denies_all_of(each, rule):
            edit.still.append(f"{_who(each, others)} still denies it")
        elif denial_covers(each.pattern, rule.pattern):
            edit.still.append(f"{_who(each, others)} still denies a part of it")
        elif covers(rule.pattern, each.pattern):
            inside.append(each)
    edit.said += [f"{_who(each, others)} still denies what lies inside it" for each in inside[:_MAX_SAID]]
    if len(inside) > _MAX_SAID:
        edit.said.append(f"and so do {len(inside) - _MAX_SAID} more denials")


def _block(edit: _Edit, typed: Typed, other_allows: Sequence[Rule], *, unlisted: bool) -> None:
    deny = typed.rule
    removed = edit.remove(lambda each: not each.deny and _is_taken_back(each, typed))
    # Who names no port means all of them, while a rule without ports is about the web ports only.
    ports = ALL_PORTS if deny.ports == WEB_PORTS else deny.ports
    allows = [*(each for each in edit.rules if not each.deny), *other_allows]
    left = [each for each in allows if denial_meets(deny.pattern, each.pattern) and ports_meet(each.ports, ports)]
    if unlisted or not all(ports_cover(WEB_PORTS, each.ports) for each in left):
        deny = replace(deny, ports=ports)
    if wider := next((each for each in edit.rules if each.deny and denies_all_of(each, deny)), None):
        edit.said.append(f"{deny.text[1:]} is already denied by {_line(wider)}")
    elif left:
        edit.add(deny.text, _why_denied(deny, left, other_allows))
    elif unlisted:
        edit.add(deny.text, "otherwise a running command that learns, asks or is not understood could let it through")
    elif not removed:
        edit.add(deny.text, "no rule allowed it before")


def _why_denied(deny: Rule, left: Sequence[Rule], other_allows: Sequence[Rule]) -> str:
    """Of the rules that are left, one that allows it by itself says most."""
    if deny.pattern.scope is not Scope.NETWORK:
        return f"otherwise {_who(left[0], other_allows)} would allow it"
    if direct := next((each for each in left if each.pattern.scope is Scope.NETWORK), None):
        return f"otherwise {_who(direct, other_allows)} would allow it"
    return f"otherwise names that {_who(left[0], other_allows)} allows could lead there"


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


def _who(rule: Rule, others: Sequence[Rule]) -> str:
    return f"{rule}, a rule of a running command," if any(rule is each for each in others) else _line(rule)


def _line(rule: Rule) -> str:
    return f"line {rule.source.line} ({rule})" if rule.source.line is not None else f"{rule.source} ({rule})"
