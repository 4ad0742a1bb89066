"""What a virtual machine needs on this machine, each part with what is wrong with it: for `exeat doctor`.

Nothing is booted. QEMU is asked for its version, and KVM is tried, whatever an earlier run has found.
"""

from __future__ import annotations

from collections.abc import Mapping

from exeat.errors import JailError
from exeat.jail.vm.accel import look_at_kvm
from exeat.jail.vm.kernel import VIRTIOFS, find_kernel
from exeat.jail.vm.options import KVM
from exeat.jail.vm.programs import GET_VIRTIOFSD, find_qemu, find_virtiofsd, qemu_version
from exeat.values import Value


class PartLine(Value):
    """`ok`: it is as good as it can be. `is_needed`: without it, there is no virtual machine; else it is slower."""

    name: str
    ok: bool
    why: str
    fix: str = ""
    is_needed: bool = True

    def to_texts(self) -> list[str]:
        """What a person wants to know, a sentence each."""
        return [self.why, *([f"to get it: {self.fix}"] if self.fix else [])]


def examine_parts(environ: Mapping[str, str], cache_folder: str = "") -> list[PartLine]:
    """QEMU, kernel, files and acceleration, in this order. `cache_folder`: where runs remember that KVM failed."""
    return [_qemu(environ), _kernel(environ), _files(environ), _acceleration(cache_folder)]


def _qemu(environ: Mapping[str, str]) -> PartLine:
    try:
        path = find_qemu(environ)
    except JailError as error:
        return _failed("qemu", error)
    version = qemu_version(path)
    if not version:
        return PartLine("qemu", False, f"{path} does not say its version", "install QEMU again")
    return PartLine("qemu", True, f"version {version}, {path}")


def _kernel(environ: Mapping[str, str]) -> PartLine:
    try:
        kernel = find_kernel("", environ)
    except JailError as error:
        return _failed("kernel", error)
    return PartLine("kernel", True, f"Linux {kernel.version}, {kernel.path}")


def _files(environ: Mapping[str, str]) -> PartLine:
    try:
        shares = find_kernel("", environ).shares
    except JailError:
        return PartLine("files", False, "depends on the kernel")
    virtiofsd = find_virtiofsd(environ)
    if VIRTIOFS in shares and virtiofsd:
        return PartLine("files", True, f"shared by virtiofs, {virtiofsd.path}")
    if virtiofsd:
        return PartLine("files", True, "shared by 9p, which QEMU does itself: this kernel has no virtiofs")
    return PartLine("files", False, "shared by 9p, which QEMU does itself: slower", GET_VIRTIOFSD, is_needed=False)


def _acceleration(cache_folder: str) -> PartLine:
    found = look_at_kvm(cache_folder, is_fresh=True)
    if found.kind == KVM:
        return PartLine("acceleration", True, f"KVM: {found.why}", is_needed=False)
    return PartLine("acceleration", False, f"emulated (tcg): {found.why}", found.fix, is_needed=False)


def _failed(name: str, error: JailError) -> PartLine:
    return PartLine(name, False, f"{error.public}: {error.detail}" if error.detail else error.public, error.fix)
