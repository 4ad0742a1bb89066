"""Settings that a virtual machine cannot have, and those that it implies."""

from __future__ import annotations

from exeat.errors import ConfigError, JailError
from exeat.jail.explain import is_already_inside
from exeat.jail.vm.options import VmOptions
from exeat.run.settings import Plan
from exeat.sandbox.folder import SandboxFolder
from exeat.sandbox.machine import open_machine


def with_saved_machine(options: VmOptions, folder: SandboxFolder) -> VmOptions:
    """Of the sandbox, if it has one. The descriptor is the jail's."""
    return options.replace(saved_fd=open_machine(folder))


def refuse_what_vms_lack(plan: Plan) -> None:
    """Raises ConfigError, or JailError where no virtual machine is available at all."""
    settings = plan.settings
    if is_already_inside():
        raise JailError(
            "already inside an exeat jail, which has no virtual machine in it",
            detail="QEMU needs a jail of its own, and a jail allows no other in it",
            fix="exeat run --vm outside, with all of this in the guest",
        )
    if settings.unix:
        raise ConfigError(
            "a guest cannot reach a Unix socket of this machine",
            where="--unix",
            expected="--allow localhost:PORT for a TCP port of this machine, or a run without --vm",
        )
    if settings.devices:
        raise ConfigError("a virtual machine has devices of its own", where="--device", expected="a run without --vm")
    for said in (*settings.files, *plan.prepared.files):
        if said.mode == "host":
            raise ConfigError(
                "the guest could change every file that you can, which a virtual machine is there to prevent",
                where=said.named("mode"),
                expected="--files view, and --write PATH for what it may change",
            )
