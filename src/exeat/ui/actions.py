"""The page's buttons: the same as `exeat proxy` and `exeat files diff`, by the same code. Blocking; for threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from exeat.errors import ConfigError
from exeat.files.layers.comparing import Comparison
from exeat.files.layers.showing import NotShownError, rows_of, text_diff, totals
from exeat.policy import Source, parse_rule
from exeat.policy.rule import Scope
from exeat.sandbox import changes, control
from exeat.sandbox.allowlist import read_allowlist, update_allowlist
from exeat.sandbox.control import read_other_rules
from exeat.sandbox.folder import open_sandbox

Asked = Mapping[str, object]
Said = dict[str, object]
MAX_ROWS: Final = 1_000  # that are sent; the page says how many there are


def allow(asked: Asked) -> Said:
    """Add a rule: `exactly` the one that was shown, or what the user typed, read as the command line reads it."""
    name, rule = _text(asked, "sandbox"), _text(asked, "rule")
    exactly = _flag(asked, "exactly")
    with open_sandbox(name) as folder:
        others = read_other_rules(name)
        if exactly:
            change = changes.store_rule(folder, rule, others.rules, unlisted=others.lets_through)
        else:
            change = changes.allow(folder, [rule], others.rules, unlisted=others.lets_through)
    return _came_of(change, name)


def block(asked: Asked) -> Said:
    """Take a rule that allows out of the list, and deny what would still be let through."""
    name = _text(asked, "sandbox")
    rule = parse_rule(_text(asked, "rule"), Source("rule"))
    # As typed, a name means its subdomains too. Here a rule is meant as it is written in the list.
    typed = f"={rule.text}" if rule.pattern.scope is Scope.EXACT else rule.text
    with open_sandbox(name) as folder:
        others = read_other_rules(name)
        change = changes.block(folder, [typed], others.rules, unlisted=others.may_let_through)
    return _came_of(change, name, others.problems)


def remove(asked: Asked) -> Said:
    """Take a rule that denies out of the list. Nothing is allowed by that which another rule does not allow."""
    name = _text(asked, "sandbox")
    rule = parse_rule(_text(asked, "rule"), Source("rule"))
    if not rule.deny:
        raise ConfigError(f"{rule} is an allow rule: block it instead", where="rule")
    with open_sandbox(name) as folder:
        was_there = rule in read_allowlist(folder).rules
        update_allowlist(folder, lambda listed: listed.without(rule))
    return _came_of(changes.Change((f"removed {rule}" if was_there else f"{rule} was not there",), was_there), name)


def answer(asked: Asked) -> Said:
    """Answer a question that waits."""
    said = control.answer(
        _text(asked, "sandbox"), _text(asked, "id"), allow=_flag(asked, "allow"), always=_flag(asked, "always")
    )
    return {"said": [said]}


def files(asked: Asked) -> Said:
    """What commands changed outside their project."""
    return list_files(_text(asked, "sandbox"))


def file_text(asked: Asked) -> Said:
    """How one of these files differs."""
    return show_file(_text(asked, "sandbox"), _text(asked, "path"))


ACTIONS: Final[Mapping[str, Callable[[Asked], Said]]] = {
    "/api/allow": allow,
    "/api/block": block,
    "/api/remove": remove,
    "/api/answer": answer,
    "/api/files": files,
    "/api/files/text": file_text,
}


def _came_of(change: changes.Change, name: str, problems: Sequence[str] = ()) -> Said:
    """Running commands are told even if the list is as before: one that could not be told then is told now."""
    told = control.tell(name)
    return {
        "said": list(change.said),
        "still": list(change.still),
        "taken": told.taken,
        "closed": told.closed,
        "notes": list(told.notes),
        "failed": [*problems, *told.failed],
    }


def _text(asked: Asked, name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is missing")
    return value


def _flag(asked: Asked, name: str) -> bool:
    """Nothing that is merely true: a yes must be said."""
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false")
    return value


def list_files(sandbox: str) -> Said:
    """What the layers of a sandbox would change on this machine."""
    with open_sandbox(sandbox) as folder, Comparison(folder) as comparison:
        changes = comparison.changes()
        rows = rows_of(comparison.real, changes, every=False)
    return {
        "rows": [row._asdict() for row in rows[:MAX_ROWS]],
        "row_count": len(rows),
        "totals": totals(changes)._asdict(),
    }


def show_file(sandbox: str, path: str) -> Said:
    """How one of them differs. Only a path that is on the list can be looked at. Raises ConfigError."""
    with open_sandbox(sandbox) as folder, Comparison(folder) as comparison:
        for change in comparison.changes([path]):
            if change.path == path:
                try:
                    return {"lines": text_diff(comparison.real, change)}
                except NotShownError as error:
                    return {"lines": [], "why": str(error)}
    raise ConfigError("nothing has changed there")
