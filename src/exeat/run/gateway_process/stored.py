"""The list of the command's sandbox: part of its policy, and reloaded during the run.

A change is told over the control socket. The file is looked at as well, for changes by other hands. A list that cannot
be read leaves the last good one in force.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from exeat.audit.record import encode_event
from exeat.errors import ConfigError
from exeat.policy import LOCALHOST, Policy, Rule, Source, parse_rule
from exeat.policy.grammar import load_suffixes
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.changes import store_rule
from exeat.sandbox.folder import SandboxFolder

if TYPE_CHECKING:
    from exeat.gateway.gateway import Gateway

_log = logging.getLogger("exeat")
_LOOK_S: Final = 0.5
_FILE: Final = "allowlist.txt"


class StoredRules:
    """The rules of a list, next to those that the command was started with."""

    def __init__(self, folder: SandboxFolder, own: Policy) -> None:
        """`own` is the policy without the list. Raises ConfigError for a list that cannot be used."""
        self._folder = folder
        self.own = own
        self._seen = self._look()
        self._rules = read_allowlist(folder).rules
        self._first = frozenset(self._rules)
        self._kept: set[str] = set()  # by answers, as text; the list may have been read since or not
        self._task: asyncio.Task[None] | None = None

    @property
    def policy(self) -> Policy:
        # Before those that follow from secrets: where two say the same, the one that someone wrote is kept.
        return self.own.with_rules((*self._rules, *self.own.rules))

    def follow(self, gateway: Gateway) -> None:
        """Look at the file from now on."""
        load_suffixes()  # for rules that come later; by then nothing is loaded any more
        self._gateway = gateway
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def reload(self) -> tuple[int, list[str]]:
        """Read the list again. Returns the number of connections that were closed, and what to know about it.

        Raises ConfigError, with everything left as it was.
        """
        self._seen = self._look()
        try:
            rules = read_allowlist(self._folder).rules
        except ConfigError as error:
            self._gateway.state.journal.append(encode_event("reload-failed", gateway=self._gateway.id, note=str(error)))
            raise
        # An answer that was kept is in force by itself too. It goes when its rule goes from the list.
        listed = {rule.text for rule in rules}
        gone = {rule.text for rule in self._rules} | self._kept
        gone -= listed
        self._kept &= listed
        granted = {rule for rule in self._gateway.granted if rule.text in gone}
        if rules == self._rules and not granted:
            return 0, []
        self._gateway.forget(granted)
        self._rules = rules
        return await self._gateway.set_policy(self.policy), _notes(set(rules) - self._first)

    def keep(self, rule: str) -> None:
        """Put a rule into the list: an answer that is to hold for good. In force with the next look, or sooner."""
        store_rule(self._folder, rule)
        self._kept.add(parse_rule(rule, Source("an answer")).text)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._look() != self._seen:
                try:
                    await self.reload()
                except ConfigError:
                    pass  # on record
                except Exception:  # a defect of ours must not end the watch
                    _log.exception("the list could not be read again")

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(_FILE, dir_fd=self._folder.descriptor, follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _notes(added: Iterable[Rule]) -> list[str]:
    """What cannot change while a command runs: its certificates, and the shape of its jail."""
    notes = []
    for rule in sorted(added, key=lambda each: each.text):
        network = rule.pattern.network
        if rule.conditional:
            notes.append(f"{rule.text}: TLS to it is looked into from the next start; until then it is denied")
        elif not rule.deny and (network.is_loopback if network is not None else rule.pattern.name == LOCALHOST.text):
            notes.append(f"{rule.text}: the host's loopback is opened at the next start")
    return notes
