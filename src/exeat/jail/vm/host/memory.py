"""The memory of a guest: the requested size if the machine has it, else a share of it."""

from __future__ import annotations

from typing import Final

from exeat.errors import JailError
from exeat.jail.vm.options import LEAST_MEMORY, MEMORY

_MEMINFO: Final = "/proc/meminfo"
_ROUNDED: Final = ~((1 << 20) - 1)


def machine_memory(meminfo: str = _MEMINFO) -> int:
    """Bytes; 0 if the machine does not say."""
    try:
        with open(meminfo) as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "MemTotal":
                    return int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0


def choose_memory(wanted: int, meminfo: str = _MEMINFO) -> int:
    """Bytes, whole megabytes. QEMU takes them from the machine as the guest uses them. Raises JailError."""
    total = machine_memory(meminfo)
    if not wanted:
        wanted = min(MEMORY, max(total // 2, LEAST_MEMORY)) if total else MEMORY
    if total and wanted > total:
        raise JailError(
            "there is not enough memory for the virtual machine",
            detail=f"it would have {wanted >> 20} MiB, and this machine has {total >> 20} MiB",
            fix=f"--memory {max(total // 2, LEAST_MEMORY) >> 20}m, or less",
        )
    return wanted & _ROUNDED
