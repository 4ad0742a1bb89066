"""Everything decided about a guest before its jail is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exeat.errors import JailError
from exeat.jail.vm.files.disk import GuestDisk
from exeat.jail.vm.files.seed import Seed
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.settings import Settings
from exeat.jail.vm.shares import Served
from exeat.jail.vm.tree import MachineTree
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.vm.saved.continuing import Continuing, Saving


class Guest(Value):
    machine: Machine  # without descriptors
    settings: Settings
    argv: tuple[str, ...]
    environ: dict[str, str]
    served: Served
    tree: MachineTree
    boot_limit_s: float
    time_limit_s: float
    disk: GuestDisk | None = None
    seed: Seed | None = None  # for an image that boots by itself
    continues: Continuing | None = None  # a machine that was saved
    saves: Saving | None = None  # the machine, instead of running a command


class GuestError(JailError):
    """There is no guest (any more)."""
