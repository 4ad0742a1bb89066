"""`exeat vm`: its options. A virtual machine that has booted, saved for the next runs of a sandbox."""

from __future__ import annotations

import argparse

from exeat.cli.options import SandboxActions
from exeat.cli.vm.options import add_machine_options


def add_vm_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "`exeat run --vm --name N` starts from a saved machine in a fraction of the time\n"
        "of a boot. The machine has booted and done nothing else: it holds no file, no\n"
        "secret and no command."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat vm snapshot --name work\n"
        "  exeat run --vm --name work -- npm test    # starts from it\n"
        "  exeat vm forget --name work\n"
        "\n"
        "Without --name, the sandbox called default is meant."
    )
    actions = SandboxActions(parser, "exeat vm")
    snapshot = actions.add(
        "snapshot",
        "boot a machine and save it, for the next runs of the sandbox",
        "Boot a machine, save it as it waits for a command, and end it. Runs of the\n"
        "sandbox with --vm start from it, with the same memory and CPUs. If QEMU, the\n"
        "kernel or exeat has changed since, they boot instead, and say so.",
        _snapshot,
        epilog="exit status: 0 saved; 1 it did not boot; 2 bad arguments, or no QEMU here",
    )
    add_machine_options(snapshot)
    actions.add(
        "forget",
        "remove the saved machine",
        "Remove the saved machine of a sandbox. Its next run boots.",
        _forget,
        epilog="exit status: 0 removed; 1 there was none; 2 bad arguments",
    )


def _snapshot(options: argparse.Namespace) -> int:
    from exeat.cli.vm.snapshot import save_snapshot

    return save_snapshot(options)


def _forget(options: argparse.Namespace) -> int:
    from exeat.cli.vm.snapshot import forget_snapshot

    return forget_snapshot(options.name)
