"""The command's files during the run: what it sees, what exeat watches, and what happens to its changes.

Jails differ in what they do about files (`exeat.jail.select.Hides`); each way is a class here, with the same steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exeat.run.settings import FilesSeen, Plan

if TYPE_CHECKING:
    from exeat.jail.container.options import Mount
    from exeat.jail.files.mounts import View
    from exeat.jail.jail import Built
    from exeat.jail.vm.files.disk import GuestDisk


class CommandFiles:
    """Those of the caller, and nothing to see to."""

    cwd = ""  # the caller's
    view: View | None = None
    hidden: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()  # for a jail whose files are an image's
    disk: GuestDisk | None = None  # for a virtual machine with an image
    folder = ""  # for files that such a jail mounts
    memory = ""  # for what is remembered of images and kernels
    descriptor = -1  # readable when `attend` has something to do
    look_every_ms: float | None = None  # how often `why_end` wants to be asked
    said = ""  # after `end_layer`: what became of it

    def __init__(self, plan: Plan) -> None:
        """Raises ConfigError or StartError."""
        self.plan = plan

    def begin(self, built: Built) -> None:
        """The jail stands, and nothing runs in it."""

    def attend(self) -> None:
        pass

    def why_end(self) -> str:
        return ""

    def sweep(self) -> list[str]:
        """When the command is gone: see that nothing which runs outside later was changed. Lines for the user."""
        return []

    def end_layer(self, began: float) -> FilesSeen:
        """When the command is gone: count what it wrote to its layer, and keep that or not."""
        return FilesSeen()

    def hints(self) -> list[str]:
        """When the command has failed: what of its files may be the reason."""
        return []

    def close(self) -> None:
        """May be called more than once."""


class FilesByPath(CommandFiles):
    """The jail refuses some names, whether or not there is a file."""

    def __init__(self, plan: Plan) -> None:
        from exeat.run.files.hidden_files import find_hidden, own_files  # macOS only

        super().__init__(plan)
        self.hidden = (*(entry.path for entry in find_hidden(plan, own_files(plan))), *self._logs_to_come())

    def _logs_to_come(self) -> list[str]:
        log = self.plan.settings.log_in_reach
        if log is None or log.startswith(("-", "/dev/")):
            return []
        keep = self.plan.settings.audit_rotation.keep
        return [f"{log}.next", *(f"{log}.{number}" for number in range(1, keep + 2))]
