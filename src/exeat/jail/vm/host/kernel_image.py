"""Reads a kernel's file: its version, its compressed part, and the way in which QEMU can boot it.

Two kinds boot: a bzImage, as distributions ship it (Documentation/arch/x86/boot.rst of Linux), and an ELF vmlinux with
the note by which Xen's PVH guests are entered, which QEMU takes as well.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from exeat.values import Value

if TYPE_CHECKING:
    import mmap

_SETUP_SECTS: Final = 0x1F1
_HEADER_MAGIC: Final = 0x202
_PROTOCOL: Final = 0x206
_VERSION_POINTER: Final = 0x20E
_LOAD_FLAGS: Final = 0x236
_PAYLOAD: Final = 0x248
_HEADER_END: Final = 0x250
_SECTOR: Final = 512
_HAS_64_BIT_ENTRY: Final = 1
_OLDEST_PROTOCOL: Final = 0x20C  # Linux 3.8: since then it says whether it is for 64 bits

_ELF_64_LITTLE: Final = b"\x7fELF\x02\x01"
_X86_64: Final = 62
_NOTES: Final = 4  # PT_NOTE
_PVH_ENTRY: Final = 18  # XEN_ELFNOTE_PHYS32_ENTRY
_BANNER: Final = b"Linux version "
_MOST_HEADERS: Final = 64  # program headers; a kernel has five
_MOST_NOTES: Final = 1 << 16
_MOST_SIZE: Final = 512 << 20
_IN_VERSION: Final = frozenset("._+-~")


class UnusableError(Exception):
    """Why this file cannot be booted: a clause that follows its name."""


class KernelImage(Value):
    """`payload`: where the compressed kernel lies in a bzImage, and how long it is; (0, 0) in a vmlinux."""

    version: str
    payload: tuple[int, int] = (0, 0)


def read_image(file: int) -> KernelImage:
    """Raises UnusableError: this is no kernel that QEMU could boot; and OSError."""
    head = os.pread(file, _HEADER_END, 0)
    if head.startswith(b"\x7fELF"):
        return _read_elf(file, head)
    if len(head) < _HEADER_END or head[_HEADER_MAGIC : _HEADER_MAGIC + 4] != b"HdrS":
        raise UnusableError("is not a Linux kernel for x86 (neither a bzImage nor an ELF vmlinux)")
    protocol, flags = (struct.unpack_from("<H", head, at)[0] for at in (_PROTOCOL, _LOAD_FLAGS))
    if protocol < _OLDEST_PROTOCOL or not flags & _HAS_64_BIT_ENTRY:
        raise UnusableError("is a kernel for 32 bits, or older than Linux 3.8")
    setup = ((head[_SETUP_SECTS] or 4) + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", head, _PAYLOAD)
    version_at = struct.unpack_from("<H", head, _VERSION_POINTER)[0] + 0x200
    text = os.pread(file, 256, version_at) if version_at < setup else b""
    return KernelImage(_as_version(text), (setup + offset, length))


def _read_elf(file: int, head: bytes) -> KernelImage:
    """Distributions ship none of these; someone has built or unpacked one."""
    import mmap

    if not head.startswith(_ELF_64_LITTLE) or struct.unpack_from("<H", head, 18)[0] != _X86_64:
        raise UnusableError("is an ELF file, but not one for x86-64")
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
        if not has_pvh_entry(content):
            raise UnusableError("is a vmlinux without CONFIG_PVH, which QEMU cannot start: name its bzImage")
        at = content.find(_BANNER)
        return KernelImage(_as_version(content[at + len(_BANNER) : at + 256] if at >= 0 else b""))


def _as_version(text: bytes) -> str:
    """The first word. It becomes a part of a path, so it must be plain."""
    word = text.partition(b"\0")[0].partition(b" ")[0].decode("ascii", "replace")
    if not word or not word[0].isalnum() or not all(c.isascii() and (c.isalnum() or c in _IN_VERSION) for c in word):
        raise UnusableError("does not say which version of Linux it is")
    return word


def has_pvh_entry(content: bytes | mmap.mmap) -> bool:
    """Can QEMU start this ELF file?"""
    if len(content) < 64 or content[:6] != _ELF_64_LITTLE:
        return False
    (headers,) = struct.unpack("<Q", content[32:40])
    size, count = struct.unpack("<HH", content[54:58])
    for number in range(min(count, _MOST_HEADERS)):
        header = content[headers + number * size : headers + number * size + 56]
        if len(header) < 56 or struct.unpack_from("<I", header)[0] != _NOTES:
            continue
        (start,), (length,) = struct.unpack_from("<Q", header, 8), struct.unpack_from("<Q", header, 32)
        if _has_note(content[start : start + min(length, _MOST_NOTES)]):
            return True
    return False


def _has_note(notes: bytes) -> bool:
    at = 0
    while at + 12 <= len(notes):
        name_length, length, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_length]
        if kind == _PVH_ENTRY and name == b"Xen\0":
            return True
        at += 12 + (name_length + 3 & ~3) + (length + 3 & ~3)
    return False


def unpacked_size(file: int, image: KernelImage) -> int:
    """How large the kernel in a bzImage is when unpacked: its last four bytes say so. 0: they do not."""
    start, length = image.payload
    if length < 8:
        return 0
    last = os.pread(file, 4, start + length - 4)
    size = int.from_bytes(last, "little") if len(last) == 4 else 0
    return size if length < size <= _MOST_SIZE else 0
