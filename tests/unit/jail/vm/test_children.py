"""What QEMU and virtiofsd may use up of the machine."""

from __future__ import annotations

import pytest

from exeat.jail.vm.children import most_memory
from exeat.jail.vm.machine import Disk, Machine, NineP, VirtioFs

_MB = 1 << 20
_MACHINE = Machine("qemu", 512 * _MB, 1, "tcg")


@pytest.mark.threat("T-G12")
@pytest.mark.parametrize(
    ("machine", "most"),
    [
        (_MACHINE.replace(shares=(VirtioFs(3, "root"),)), 1040 * _MB),
        (_MACHINE.replace(memory_fd=3, shares=(VirtioFs(3, "root"),)), 1040 * _MB),
        (_MACHINE.replace(memory_fd=3, shares=(NineP("/guest", "root"),)), (1040 + 640) * _MB),
        (_MACHINE.replace(shares=(NineP("/guest", "root"),)), (512 + 1040 + 640) * _MB),
        (_MACHINE.replace(shares=(VirtioFs(3, "root"),), cpus=4), 1088 * _MB),
        (_MACHINE.replace(shares=(VirtioFs(3, "root"),), disk=Disk(4, "raw")), (1040 + 640) * _MB),
    ],
)
def test_qemu_has_a_bounded_part_of_the_memory_besides_its_guests(machine: Machine, most: int) -> None:
    """The guest's own counts where it is not shared with anything else, as Linux counts."""
    assert most_memory(machine) == most
