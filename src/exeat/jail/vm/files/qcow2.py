"""The header of a qcow2 file: reading it, and making one for a guest's empty overlay. Pure.

The format: docs/interop/qcow2.txt of QEMU. What is below an empty one is never named in it: QEMU is given that as an
open file (`machine.Disk.backing`).
"""

from __future__ import annotations

import struct
from typing import Final

from exeat.values import Value

MAGIC: Final = b"QFI\xfb"
# magic, version, backing file at, its length, cluster bits, size, encryption, L1 entries, L1 at, refcounts at, their
# clusters, snapshots, snapshots at; from version 3 on: features that must be known, may be known, are cleared; order of
# refcounts, length of the head.
_HEAD: Final = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_HEAD_2: Final = struct.Struct(">4sIQIIQIIQQIIQ")
_CLUSTER_BITS: Final = 16
_CLUSTER: Final = 1 << _CLUSTER_BITS
_TABLE_COVERS: Final = _CLUSTER * (_CLUSTER // 8)  # bytes of the disk that one entry of L1 stands for
_REFCOUNT_ORDER: Final = 4  # 16 bits each
_DIRTY: Final = 1 << 0  # it was not closed: what it counts is looked over by QEMU
EXTERNAL_DATA: Final = 1 << 2  # the data are in another file
MOST_BYTES: Final = 32 << 40  # of a disk


class Head(Value):
    """`names_files`: data of it, or what is below it, are in files that it names."""

    version: int
    size: int
    names_files: bool
    is_encrypted: bool
    features: int


def read_head(start: bytes) -> Head | None:
    """None: it is no qcow2 file, or cut off, or of another version."""
    if len(start) < _HEAD_2.size or not start.startswith(MAGIC):
        return None
    _, version, backing, _, _, size, encryption, *_ = _HEAD_2.unpack_from(start)
    if version not in (2, 3) or (version == 3 and len(start) < _HEAD.size):
        return None
    features = _HEAD.unpack_from(start)[13] if version == 3 else 0
    return Head(version, size, bool(backing or features & EXTERNAL_DATA), bool(encryption), features)


def empty_overlay(size: int) -> bytes:
    """A file without data, for a disk of that size. Raises ValueError for one that is too large."""
    entries = -(-size // _TABLE_COVERS)
    if not 0 < size <= MOST_BYTES:
        raise ValueError(f"no disk has {size} bytes")
    l1_clusters = -(-entries * 8 // _CLUSTER)
    refcounts_at, block_at, l1_at = _CLUSTER, 2 * _CLUSTER, 3 * _CLUSTER
    used = 3 + l1_clusters
    head = _HEAD.pack(
        MAGIC, 3, 0, 0, _CLUSTER_BITS, size, 0, entries, l1_at, refcounts_at, 1, 0, 0, 0, 0, 0, _REFCOUNT_ORDER,
        _HEAD.size,
    )  # fmt: skip
    clusters = (
        head,
        struct.pack(">Q", block_at),
        struct.pack(">H", 1) * used,
        bytes(l1_clusters * _CLUSTER),
    )
    return b"".join(each.ljust(_CLUSTER, b"\0") for each in clusters)


def overlay_fault(start: bytes, size: int) -> str:
    """What is wrong with a file that was made by `empty_overlay` once and written by QEMU since; "" if nothing is.

    A QEMU that was taken over may have written anything there, also the names of files for the next one to open.
    """
    head = read_head(start)
    if head is None or head.version != 3:
        return "it is not a disk as exeat makes them"
    if head.names_files or head.is_encrypted or head.features & ~_DIRTY:
        return "it is not as exeat has made it"
    if head.size != size:
        return "it is of another size than its image"
    return ""
