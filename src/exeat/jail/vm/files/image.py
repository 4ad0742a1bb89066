"""A disk image that a user named: can QEMU use it safely?

An image may be of anyone's making, and QEMU opens whatever files a qcow2 header names. So one that is not whole in
itself is refused. What else QEMU makes of it happens in the jail.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Final

from exeat.errors import ConfigError
from exeat.jail.vm.files.qcow2 import EXTERNAL_DATA, MAGIC, MOST_BYTES
from exeat.values import Value

QCOW2, RAW = "qcow2", "raw"
_EXPECTED: Final = "a disk image: qcow2, or raw with partitions or a file system"
_SECTOR: Final = 512
# Where a disk says what it is, for a raw image: (offset, bytes, what).
_RAW_SIGNS: Final = (
    (510, b"\x55\xaa"),  # a partition table
    (_SECTOR, b"EFI PART"),
    (1080, b"\x53\xef"),  # ext2 to ext4
    (0, b"XFSB"),
    (0x10040, b"_BHRfS_M"),  # btrfs
    (0x400, b"\x10\x20\xf5\xf2"),  # f2fs
    (0, b"hsqs"),  # squashfs
)
# Disks of other programs, and how they begin.
_OTHERS: Final = {
    b"KDMV": "VMDK", b"COWD": "VMDK", b"# Disk Descr": "VMDK", b"<<< Oracle VM": "VDI", b"vhdxfile": "VHDX",
    b"conectix": "VHD",
}  # fmt: skip
_PACKED: Final = {
    b"\xfd7zXZ": "xz", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip",
}  # fmt: skip
_LOOK: Final = 0x11000


class Image(Value):
    """A file that can be a guest's disk, its format as QEMU calls it, and how large the disk is."""

    path: str
    format: str
    size: int


def examine_image(path: str) -> Image:
    """Raises ConfigError with a sentence for anything that is no such file."""
    image, descriptor = open_image(path)
    os.close(descriptor)
    return image


def open_image(path: str) -> tuple[Image, int]:
    """The same, and a descriptor of it, for reading."""
    where = f"--image {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=where, expected=_EXPECTED) from None
    except PermissionError:
        raise ConfigError("you may not read it", where=where, expected="an image of your own; a copy will do") from None
    except OSError as error:
        raise ConfigError(f"it cannot be opened: {error.strerror}", where=where, expected=_EXPECTED) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("is not a file", where=where, expected=_EXPECTED)
        head = os.pread(descriptor, _LOOK, 0)
        kind = _format_of(head, status.st_size, where)
        size = _size_in(head, where) if kind == QCOW2 else status.st_size
    except BaseException:
        os.close(descriptor)
        raise
    return Image(path, kind, size), descriptor


def _size_in(head: bytes, where: str) -> int:
    (size,) = struct.unpack_from(">Q", head, 24)
    if not 0 < size <= MOST_BYTES:
        raise ConfigError(f"says that its disk has {size} bytes", where=where, expected=_EXPECTED)
    return int(size)


def _format_of(head: bytes, size: int, where: str) -> str:
    if head.startswith(MAGIC):
        _refuse_parts(head, where)
        return QCOW2
    for start, name in _OTHERS.items():
        if head.startswith(start):
            convert = "qemu-img convert -O qcow2 FILE NEW.qcow2"
            raise ConfigError(f"is a {name} image, which exeat does not use", where=where, expected=f"{convert} first")
    for start, name in _PACKED.items():
        if head.startswith(start):
            raise ConfigError(f"is packed ({name})", where=where, expected="the unpacked file")
    if size % _SECTOR == 0 and any(head[at : at + len(sign)] == sign for at, sign in _RAW_SIGNS):
        return RAW
    raise ConfigError("is neither a qcow2 image nor a raw disk", where=where, expected=_EXPECTED)


def _refuse_parts(head: bytes, where: str) -> None:
    """An image that names other files of this machine would make the guest see them, or QEMU write to them."""
    if len(head) < 72:
        raise ConfigError("is cut off", where=where, expected="the whole image")
    _, version, backing, _, _, _, encryption = struct.unpack_from(">4sIQIIQI", head)
    if version not in (2, 3):
        raise ConfigError(
            f"is qcow2 of a version that is not known ({version})", where=where, expected="version 2 or 3"
        )
    features = struct.unpack_from(">Q", head, 72)[0] if version == 3 and len(head) >= 80 else 0
    if backing or features & EXTERNAL_DATA:
        raise ConfigError(
            "keeps part of its data in another file",
            where=where,
            expected="one file: qemu-img convert -O qcow2 FILE NEW.qcow2",
        )
    if encryption:
        raise ConfigError("is encrypted", where=where, expected="an image without encryption: qemu-img convert")
