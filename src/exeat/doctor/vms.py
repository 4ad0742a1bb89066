"""Checks the requirements of `exeat run --vm`: QEMU, a kernel, a way to share files, acceleration, memory.

No guest is booted. The kernel's modules are looked up, and /dev/kvm is tried with a guest of a few instructions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from exeat.errors import JailError


@dataclass(frozen=True, slots=True)
class VmLine:
    """One part. `is_needed`: without it there is no virtual machine at all."""

    part: str
    ok: bool
    why: str
    fix: str = ""
    is_needed: bool = True


def examine_vms() -> tuple[VmLine, ...]:
    """Each part by itself, so that all that is missing is said at once."""
    checks: tuple[tuple[str, Callable[[], VmLine]], ...] = (
        ("qemu", _qemu), ("kernel", _kernel), ("files", _files), ("accel", _accel), ("memory", _memory),
    )  # fmt: skip
    return tuple(_examine(part, check) for part, check in checks)


def _examine(part: str, check: Callable[[], VmLine]) -> VmLine:
    try:
        return check()
    except JailError as error:
        detail = f": {error.detail}" if error.detail else ""
        return VmLine(part, False, f"{error.public}{detail}", error.fix)
    except (ImportError, AttributeError, OSError) as error:
        return VmLine(part, False, f"not available on this system ({error})")


# Loaded in each: not every system that doctor runs on has what these need.


def _qemu() -> VmLine:
    from exeat.jail.vm.programs import find_qemu, qemu_version

    path = find_qemu(os.environ)
    return VmLine("qemu", True, f"{path}, version {qemu_version(path) or 'unknown'}")


def _kernel() -> VmLine:
    from exeat.jail.vm.kernel import find_kernel

    kernel = find_kernel("", os.environ)
    return VmLine("kernel", True, f"{kernel.path}, which shares files by {' or '.join(kernel.shares)}")


def _files() -> VmLine:
    from exeat.jail.vm.programs import GET_VIRTIOFSD, find_virtiofsd

    found = find_virtiofsd(os.environ)
    if found is not None:
        return VmLine("files", True, f"virtiofs, by {found.path}")
    return VmLine(
        "files", False, "no virtiofsd: only 9p, which is slower and not in every kernel", GET_VIRTIOFSD, is_needed=False
    )


def _accel() -> VmLine:
    from exeat.jail.vm.accel import choose
    from exeat.jail.vm.options import KVM

    found = choose()
    has_kvm = found.kind == KVM
    why = f"{found.kind}: {found.why}" if has_kvm else f"guests are emulated ({found.kind}): {found.why}"
    return VmLine("accel", has_kvm, why, found.fix, is_needed=False)


def _memory() -> VmLine:
    from exeat.jail.vm.host.memory import choose_memory, machine_memory

    return VmLine("memory", True, f"{choose_memory(0) >> 20} MiB for a guest, of {machine_memory() >> 20} MiB")
