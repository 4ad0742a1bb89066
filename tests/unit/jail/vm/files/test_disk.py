"""A guest's disk as QEMU gets it, and how much QEMU may write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exeat.jail.vm.files.disk import GuestDisk
from exeat.jail.vm.machine import Disk, disk_nodes

_DISK = GuestDisk(base=7, base_format="raw", overlay=8, limit=1 << 20, is_kept=False)


def test_the_image_is_below_and_read_only() -> None:
    disk = _DISK.as_qemu_has_it(900)
    assert disk == Disk(8, "qcow2", backing=Disk(900, "raw", read_only=True), is_lasting=False)
    nodes = {str(node["node-name"]): node for node in disk_nodes(disk, {8: 8, 900: 900})}
    assert nodes["disk-base-file"]["read-only"] is nodes["disk-base"]["read-only"] is True
    assert nodes["disk"]["backing"] == "disk-base"
    assert nodes["disk"]["cache"] == {"no-flush": True}
    kept = disk_nodes(_DISK.replace(is_kept=True).as_qemu_has_it(900), {8: 8, 900: 900})
    assert not any("cache" in node for node in kept)


@pytest.mark.threat("T-V41")
@pytest.mark.parametrize(("memory", "most"), [(0, 1 << 20), (3 << 20, 3 << 20)])
def test_linux_keeps_qemu_from_writing_more(memory: int, most: int, tmp_path: Path) -> None:
    """In a process of its own: an error, not its end. Its guest's memory is a file as well, and comes first."""
    path = tmp_path / "disk"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _DISK.bound(0, memory=memory)
            with path.open("wb", buffering=0) as file:
                os.pwrite(file.fileno(), b"x", most - 1)
                try:
                    os.pwrite(file.fileno(), b"x", most)
                except OSError as error:
                    status = 0 if error.errno == errno.EFBIG else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.stat().st_size == most
