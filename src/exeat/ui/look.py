"""What sandboxes are like now, as the page is told. Plain blocking calls: for threads."""

from __future__ import annotations

import os
from typing import Final

from exeat.errors import ExeatError
from exeat.files.layers.kept import layer_numbers
from exeat.policy.rule import Rule
from exeat.sandbox import control
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.folder import SandboxFolder, list_sandboxes, open_sandbox

MAX_RULES: Final = 1_000  # that are sent; of a longer list the page shows the end, where new rules go, and says so

Shown = dict[str, object]


class Lists:
    """Allowlists, read again only when their file has changed: a long one takes a tenth of a second."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[tuple[int, int, int], tuple[Rule, ...]]] = {}

    def rules(self, folder: SandboxFolder) -> tuple[Rule, ...]:
        """Raises ConfigError."""
        stamp = _stamp(folder.allowlist_path)
        known = self._read.get(folder.name)
        if stamp is not None and known is not None and known[0] == stamp:
            return known[1]
        rules = read_allowlist(folder).rules
        if stamp is not None:
            self._read[folder.name] = stamp, rules
        return rules


def look_at_all(lists: Lists) -> list[Shown]:
    """All sandboxes, for choosing one."""
    found: list[Shown] = []
    for name in list_sandboxes():
        try:
            with open_sandbox(name) as folder:
                commands = control.running(name)
                shown: Shown = {
                    "rules": len(lists.rules(folder)),
                    "running": len(commands),
                    "modes": sorted({command.mode for command in commands}),
                    "jails": sorted({command.jail for command in commands}),
                    "allowed": sum(command.allowed for command in commands),
                    "denied": sum(command.denied for command in commands),
                    "pending": sum(command.pending for command in commands),
                    "used": _last_change(folder.audit_path),
                }
        except (ExeatError, OSError) as error:
            shown = {"problem": _said(error)}
        found.append({"name": name} | shown)
    return found


def look_at(name: str, lists: Lists, commands: list[control.Running]) -> Shown:
    """One sandbox: what runs in it, and its list."""
    try:
        with open_sandbox(name) as folder:
            rules = lists.rules(folder)
            path = folder.allowlist_path
            layers = layer_numbers(folder)
    except (ExeatError, OSError) as error:
        return {"name": name, "problem": _said(error), "commands": [], "rules": [], "rule_count": 0, "layers": []}
    return {
        "name": name,
        "allowlist": path,
        "rule_count": len(rules),
        "rules": [{"text": rule.text, "line": rule.source.line, "deny": rule.deny} for rule in rules[-MAX_RULES:]],
        "commands": [command._asdict() for command in commands],
        "layers": layers,
    }


def questions(name: str) -> list[Shown]:
    """What waits for an answer."""
    return [{"sandbox": name, **question._asdict()} for question in control.pending(name)]


def _said(error: ExeatError | OSError) -> str:
    return str(error) if isinstance(error, ExeatError) else f"{error.strerror or error}"


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _last_change(path: str) -> float | None:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None
