"""The kernel inside a bzImage, unpacked once and kept.

An emulated processor takes seconds to unpack a kernel at each boot, ours a fraction of one, once. What is kept is known
by the identity of the file that it is from, so another kernel under the same path is unpacked itself.
"""

from __future__ import annotations

import os
from typing import Final

from exeat.jail.vm.host.compression import unpack
from exeat.jail.vm.host.kernel_image import KernelImage, has_pvh_entry, unpacked_size
from exeat.jail.vm.host.own_files import keep_newest, open_own, write_own

_BEGINNING: Final = "vmlinux-"
_KEPT: Final = 2


def open_unpacked(file: int, image: KernelImage, folder: str) -> int | None:
    """A descriptor of the ELF file. None: this kernel cannot be unpacked here, or QEMU could not start it so."""
    size = unpacked_size(file, image)
    if not size:
        return None
    name = _BEGINNING + _identity(file)
    kept = open_own(folder, name)
    if kept is not None:
        kept_size = os.fstat(kept).st_size
        if kept_size == size:
            return kept
        os.close(kept)
        if not kept_size:
            return None
    start, length = image.payload
    try:
        vmlinux = unpack(os.pread(file, length, start), size)
    except ValueError:
        return None
    if len(vmlinux) != size or not has_pvh_entry(vmlinux):
        os.close(_keep(folder, name, b""))  # so that the next run does not unpack it to find out
        return None
    return _keep(folder, name, vmlinux)


def _identity(file: int) -> str:
    """Nothing can be put in the place of a file, or into it, without one of these being another."""
    found = os.fstat(file)
    numbers = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return "-".join(f"{number:x}" for number in numbers)


def _keep(folder: str, name: str, vmlinux: bytes) -> int:
    """On disk, or in memory where nothing can be kept: that it is unpacked pays for one boot already."""
    try:
        write_own(folder, name, vmlinux)
    except OSError:
        descriptor = None
    else:
        keep_newest(folder, _BEGINNING, _KEPT)
        descriptor = open_own(folder, name)
    if descriptor is None:
        from exeat.trust.unnamed_file import file_in_memory

        descriptor = file_in_memory(vmlinux)
    return descriptor
