"""Live messages for the page, each about one thing, sent only when that thing has changed.

Plain blocking calls: for threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from exeat.audit.reading import Follower, read_last
from exeat.errors import ConfigError, ExeatError
from exeat.files.layers.kept import layer_numbers
from exeat.policy.rule import Rule
from exeat.sandbox import control
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.files import Stamp, file_stamp
from exeat.sandbox.folder import AUDIT, SandboxFolder, check_name, list_sandboxes, open_sandbox
from exeat.ui.rows import is_shown, row_of

TICK_S: Final = 0.25
MAX_ROWS: Final = 2_000  # of the past, and at once
# How often each thing is looked at, in ticks. The log is looked at in each.
_SANDBOX_TICKS: Final = 2
_ALL_TICKS: Final = 4
_BEAT_TICKS: Final = 40
MAX_RULES: Final = 1_000  # that are sent; of a longer list the page shows the end, where new rules go, and says so
Shown = dict[str, object]


class Watch:
    """One page that looks at one sandbox, or at none yet. Blocks, so it is for threads; they take turns."""

    def __init__(self, name: str | None, lists: Lists) -> None:
        """Raises ConfigError if that cannot be the name of a sandbox."""
        self._name = None if name is None else check_name(name)
        self._lists = lists
        self._tick = 0
        self._sent: dict[str, object] = {}
        self._asking: set[str] = set()  # sandboxes in which questions wait
        self._folder: SandboxFolder | None = None
        self._follower: Follower | None = None
        self._last = ("", 0)
        self._turn = threading.Lock()
        self._is_closed = False

    def look(self) -> list[Shown]:
        """What is new since the last call, which was a tick ago."""
        with self._turn:
            return [] if self._is_closed else self._look()

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            self._let_go()

    def _look(self) -> list[Shown]:
        messages: list[Shown] = []
        if self._tick % _ALL_TICKS == 0:
            listed = _listed(self._lists)
            self._asking = {str(each["name"]) for each in listed if each.get("pending")}
            messages += self._changed("sandboxes", listed)
        if self._name is not None:
            if self._tick % _SANDBOX_TICKS == 0:
                messages += self._look_at_sandbox(self._name)
            messages += self._new_rows(self._name)
        if self._tick % _SANDBOX_TICKS == 0:
            messages += self._look_at_questions()
        if not messages and self._tick % _BEAT_TICKS == 0:
            messages.append({"beat": self._tick})
        self._tick += 1
        return messages

    def _look_at_sandbox(self, name: str) -> list[Shown]:
        try:
            commands = control.running(name)
        except ExeatError:  # look_at says what is wrong
            commands = []
        if any(command.pending for command in commands):
            self._asking.add(name)
        return self._changed("sandbox", look_at(name, self._lists, commands))

    def _look_at_questions(self) -> list[Shown]:
        """Those of all sandboxes: they do not wait until the user looks at the right one."""
        asked: list[Shown] = []
        for name in sorted(self._asking):
            with suppress(ExeatError):
                asked += questions(name)
        # Time passes without being told; the page counts down by itself.
        return self._changed("questions", asked, lambda all_: [each | {"left_s": 0} for each in all_])

    def _changed(self, what: str, now: Any, essence: Callable[[Any], object] = lambda now: now) -> list[Shown]:
        if what in self._sent and self._sent[what] == essence(now):
            return []
        self._sent[what] = essence(now)
        return [{what: now}]

    def _new_rows(self, name: str) -> list[Shown]:
        try:
            if self._folder is not None and not os.fstat(self._folder.descriptor).st_nlink:
                self._let_go()  # removed; perhaps made again
            if self._follower is None:
                return self._first_rows(name)
            return self._rows(self._follower.read_new())
        except ConfigError:  # not there, or not ours any more; look_at says so. Tried again with the next tick.
            self._let_go()
            return []

    def _first_rows(self, name: str) -> list[Shown]:
        self._folder = open_sandbox(name)
        within = self._folder.descriptor
        # In this order nothing falls between the two; what both have is told once, by its number.
        self._follower = Follower(AUDIT, dir_fd=within)
        past = read_last(AUDIT, MAX_ROWS, is_shown, dir_fd=within)
        return self._rows(past, first=True) + self._rows(self._follower.read_new())

    def _let_go(self) -> None:
        if self._follower is not None:
            self._follower.close()
        if self._folder is not None:
            self._folder.close()
        self._follower = self._folder = None

    def _rows(self, records: list[dict[str, Any]], *, first: bool = False) -> list[Shown]:
        rows = []
        for record in records:
            row = row_of(record)
            if row is None or (row["chain"] == self._last[0] and int(str(row["seq"])) <= self._last[1]):
                continue
            self._last = str(row["chain"]), int(str(row["seq"]))
            rows.append(row)
        if not rows and not first:
            return []
        return [{"rows": rows[-MAX_ROWS:], "first": first, "skipped": max(0, len(rows) - MAX_ROWS)}]


def _listed(lists: Lists) -> list[Shown]:
    try:
        return look_at_all(lists)
    except ConfigError as error:  # the folder that holds them all cannot be trusted
        return [{"name": "", "problem": str(error)}]


class Lists:
    """Allowlists, read again only when their file has changed: a long one takes a tenth of a second."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Stamp, tuple[Rule, ...]]] = {}

    def rules(self, folder: SandboxFolder) -> tuple[Rule, ...]:
        """Raises ConfigError."""
        stamp = file_stamp(folder.allowlist_path)
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


def _last_change(path: str) -> float | None:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None
