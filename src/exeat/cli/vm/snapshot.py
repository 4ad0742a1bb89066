"""`exeat vm snapshot|forget`."""

from __future__ import annotations

import argparse
import os

from exeat.cli.layers import in_units
from exeat.cli.screen import say
from exeat.cli.vm.options import machine_options
from exeat.run.main import run
from exeat.run.settings import RunSettings
from exeat.sandbox.folder import open_sandbox
from exeat.sandbox.machine import forget_machine, keep_machine

_NO_COMMAND = "true"  # that never runs


def save_snapshot(options: argparse.Namespace) -> int:
    """Boot in a jail as any other, with a file in memory for the state: what is on disk is a whole one or none."""
    with open_sandbox(options.name) as folder:
        state = os.memfd_create("machine", os.MFD_CLOEXEC)
        try:
            vm = machine_options(options).replace(saving_fd=state, quiet=True)
            status = run(RunSettings([_NO_COMMAND], jail="vm", vm=vm, quiet=True))
            if status:
                return status
            size = keep_machine(folder, state)
        finally:
            os.close(state)
        say(f"saved, {in_units(size)}: exeat run --vm --name {folder.name} starts from it")
    return 0


def forget_snapshot(name: str) -> int:
    with open_sandbox(name) as folder:
        if not forget_machine(folder):
            say(f"the sandbox {name} has no saved machine")
            return 1
    return 0
