"""A guest's own disk: an image that is only read, and a file over it for the guest's changes."""

from __future__ import annotations

import resource
import signal
from typing import Final

from exeat.jail.vm.machine import Disk
from exeat.values import Value

BASE: Final = "base"  # the image, by its name in QEMU's root
# The file systems that a root can be in, and what they need that they do not name. The first are loaded in any case.
MODULES: Final = ("virtio_blk",)
FILE_SYSTEMS: Final = ("crc32c_generic", "ext4")
# Loaded if none of those is the root's: to load btrfs takes an emulated guest half a second.
MORE_FILE_SYSTEMS: Final = ("xfs", "btrfs", "f2fs", "squashfs")


class GuestDisk(Value):
    """Descriptors of the image, for reading, and of a qcow2 file for what is written, which may have `limit` bytes."""

    base: int
    base_format: str
    overlay: int
    limit: int
    is_kept: bool

    def as_qemu_has_it(self, base: int) -> Disk:
        """`base`: where QEMU has the image, opened in a place where that cannot be written."""
        below = Disk(base, self.base_format, read_only=True)
        return Disk(self.overlay, "qcow2", backing=below, is_lasting=self.is_kept)

    def bound(self, pid: int, *, memory: int) -> None:
        """QEMU writes no file beyond the limit. Its guest's memory is one, too, until it has it.

        `pid` 0: this process, which becomes QEMU. Linux sees to it, whatever has become of QEMU.
        """
        most = max(self.limit, memory)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        if not pid:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error is enough
