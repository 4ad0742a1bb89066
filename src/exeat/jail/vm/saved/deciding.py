"""Decides, before the jail is built, whether to continue, save or boot a machine, and says so."""

from __future__ import annotations

import sys

from exeat.errors import ExeatError
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.options import VmOptions
from exeat.jail.vm.saved.continuing import Continuing, Saving, not_used
from exeat.jail.vm.saved.made import made_of
from exeat.jail.vm.saved.state import Head, read_head


class SavedMachine:
    """Of a sandbox with a name."""

    def __init__(self, options: VmOptions) -> None:
        self._options = options
        self._head: Head | None = None
        if options.saved_fd >= 0:
            try:
                self._head = read_head(options.saved_fd)
            except (ExeatError, OSError) as error:
                self._boot(str(error))

    def defaults(self, options: VmOptions) -> VmOptions:
        """What was said when it was saved need not be said again."""
        if self._head is None:
            return options
        made = self._head.made
        return options.replace(memory=options.memory or self._head.memory_size, cpus=options.cpus or made.cpus)

    def decide(self, machine: Machine, kernel: str, initrd: bytes) -> tuple[Continuing | None, Saving | None]:
        """Neither of the two: it boots, and a command runs."""
        made = made_of(machine, kernel, initrd)
        if self._options.saving_fd >= 0:
            return None, Saving(self._options.saving_fd, made)
        if self._head is None:
            return None, None
        if reason := self._head.made.difference(made):
            self._boot(reason)
            return None, None
        return Continuing(self._options.saved_fd, self._head, tells=not self._options.quiet), None

    def _boot(self, reason: str) -> None:
        if not self._options.quiet:
            sys.stderr.write(f"exeat: {not_used(reason)}\n")
