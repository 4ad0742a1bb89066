"""The options of `exeat run --vm`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from exeat.cli.limits import parse_memory, parse_seconds
from exeat.errors import ConfigError

if TYPE_CHECKING:
    from exeat.jail.container.options import Mount
    from exeat.jail.vm.options import VmOptions

_OWN: Final = (
    "accel",
    "kernel",
    "image",
    "own_init",
    "guest_root",
    "time_limit",
)  # those that mean nothing for anything else
_CONTAINERS: Final = {
    "engine": "no --engine: QEMU alone runs the machine",
    "pids": "no --pids: the guest's kernel counts its own processes",
    "user": "--guest-root to be root in the guest, else the command has your uid",
}
_MAX_CPUS: Final = 64


def add_vm_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "virtual machine", "run the command under a kernel of its own: QEMU, in the same jail"
    )
    group.add_argument("--vm", action="store_true", help="use the files of this machine, as exeat run shows them")
    group.add_argument("--kvm", action="store_true", help="like --vm, but refuse to emulate the processor")
    group.add_argument(
        "--accel",
        choices=("auto", "kvm", "tcg"),
        help="how to run it: kvm, or tcg (emulated); auto says which and why (default: auto)",
    )
    group.add_argument("--kernel", metavar="FILE", help="boot this kernel (default: one of /boot; EXEAT_KERNEL)")
    group.add_argument("--image", metavar="FILE", help="use this disk image as the guest's root: qcow2 or raw")
    group.add_argument(
        "--own-init", action="store_true", help="boot the image with its own kernel and init; it needs cloud-init"
    )
    group.add_argument("--guest-root", action="store_true", help="run the command as root in the guest")
    group.add_argument(
        "--time-limit", metavar="TIME", help="power off after this many seconds, or 5m, or 1h; exit status 124"
    )


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """What a machine is made of, for one that is saved."""
    parser.add_argument("--memory", metavar="SIZE", help="such as 2g, 512m (default: 2g, or half of this machine's)")
    parser.add_argument("--cpus", metavar="N", type=float, help="how many (default: 1 emulated, up to 4 with KVM)")
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), help="kvm, or tcg (emulated) (default: auto)")
    parser.add_argument("--kernel", metavar="FILE", help="boot this kernel (default: one of /boot; EXEAT_KERNEL)")


def machine_options(options: argparse.Namespace) -> VmOptions:
    """What `add_machine_options` has read. Raises ConfigError."""
    from exeat.jail.vm.options import AUTO, KVM, LEAST_MEMORY, VmOptions  # for virtual machines

    return VmOptions(
        memory=0 if options.memory is None else parse_memory(options.memory, least=LEAST_MEMORY),
        cpus=_cpus(options.cpus),
        accel=options.accel or AUTO,
        insists=options.accel == KVM,
        kernel=_path("--kernel", options.kernel),
    )


def wants_vm(options: argparse.Namespace) -> bool:
    return bool(options.vm or options.kvm or options.jail == "vm")


def vm_options(options: argparse.Namespace) -> VmOptions | None:
    """Raises ConfigError, also for options that mean nothing without a virtual machine."""
    if not wants_vm(options):
        for name in _OWN:
            if getattr(options, name) not in (None, False):
                raise ConfigError("it applies only to a virtual machine", where=_typed(name), expected="--vm as well")
        return None
    for name, expected in _CONTAINERS.items():
        if getattr(options, name) is not None:
            raise ConfigError("it applies only to a container", where=_typed(name), expected=expected)
    from exeat.jail.vm.options import AUTO, KVM, LEAST_MEMORY, VmOptions  # for virtual machines

    if options.kvm and options.accel not in (None, KVM):
        raise ConfigError("--kvm insists on KVM", where=f"--accel {options.accel}", expected="--vm, or no --accel")
    accel = KVM if options.kvm else options.accel or AUTO
    return VmOptions(
        memory=0 if options.memory is None else parse_memory(options.memory, least=LEAST_MEMORY),
        cpus=_cpus(options.cpus),
        accel=accel,
        insists=accel == KVM,
        kernel=_path("--kernel", options.kernel),
        image=_image(options),
        own_init=_own_init(options),
        guest_root=options.guest_root,
        time_limit_s=0.0 if options.time_limit is None else parse_seconds(options.time_limit, "--time-limit"),
        quiet=options.quiet,
        mounts=_mounts(options),
    )


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _cpus(given: float | None) -> int:
    if given is None:
        return 0
    if not (given.is_integer() and 1 <= given <= _MAX_CPUS):
        raise ConfigError(
            "a virtual machine needs whole CPUs", where=f"--cpus {given:g}", expected=f"1, 2, … up to {_MAX_CPUS}"
        )
    return int(given)


def _path(option: str, given: str | None) -> str:
    """QEMU is started elsewhere, so a path must not depend on where we are."""
    if given is None:
        return ""
    if not given:
        raise ConfigError("an empty path", where=option, expected="a file")
    return os.path.abspath(os.path.expanduser(given))  # noqa: PTH100, PTH111 - pathlib takes 5 ms


def _image(options: argparse.Namespace) -> str:
    path = _path("--image", options.image)
    if path:
        from exeat.jail.vm.files.image import examine_image

        examine_image(path)
    return path


def _own_init(options: argparse.Namespace) -> bool:
    if options.own_init and options.image is None:
        raise ConfigError("it applies only to an image", where="--own-init", expected="--image FILE as well")
    if options.own_init and options.kernel is not None:
        raise ConfigError(
            "the image boots with its own kernel", where="--kernel", expected="no --own-init, or no --kernel"
        )
    return bool(options.own_init)


def _mounts(options: argparse.Namespace) -> tuple[Mount, ...]:
    if not options.mount:
        return ()
    if options.image is None:
        raise ConfigError(
            "the files of this machine are in the guest already",
            where=f"--mount {options.mount[0]}",
            expected="--write PATH to change them for real; --mount goes with --image",
        )
    from exeat.files.named_mounts import parse_guest_mount

    return tuple(map(parse_guest_mount, options.mount))
