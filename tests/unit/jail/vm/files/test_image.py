"""A disk image is one that is whole in itself, or is refused with what to do about it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.jail.vm.files.image import Image, examine_image


def qcow2(*, version: int = 3, backing: int = 0, encryption: int = 0, features: int = 0) -> bytes:
    head = struct.pack(">4sIQIIQI", b"QFI\xfb", version, backing, 0, 16, 1 << 20, encryption)
    return head.ljust(72, b"\0") + struct.pack(">Q", features) + bytes(1000)


def at(offset: int, sign: bytes, size: int = 1 << 17) -> bytes:
    return (bytes(offset) + sign).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (qcow2(), "qcow2"),
        (qcow2(version=2), "qcow2"),
        (at(510, b"\x55\xaa"), "raw"),
        (at(512, b"EFI PART"), "raw"),
        (at(1080, b"\x53\xef"), "raw"),
        (at(0x10040, b"_BHRfS_M"), "raw"),
    ],
)
def test_disks(data: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(data)
    assert examine_image(str(path)) == Image(str(path), kind, 1 << 20 if kind == "qcow2" else len(data))


@pytest.mark.threat("T-V20")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (qcow2(backing=0x200), "in another file"),
        (qcow2(features=4), "in another file"),
        (qcow2(encryption=2), "is encrypted"),
        (qcow2(version=9), "version that is not known"),
        (qcow2()[:40], "is cut off"),
        (b"KDMV" + bytes(508), "is a VMDK image"),
        (b"\xfd7zXZ" + bytes(507), "is packed (xz)"),
        (at(510, b"\x55\xaa")[:-1], "neither a qcow2 image nor a raw disk"),
        (b"", "neither a qcow2 image nor a raw disk"),
        (bytes(1 << 17), "neither a qcow2 image nor a raw disk"),
    ],
)
def test_what_is_not_a_whole_disk(data: bytes, said: str, tmp_path: Path) -> None:
    """QEMU opens what a header names: an image of a stranger's must not choose files of this machine."""
    path = tmp_path / "disk"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as refused:
        examine_image(str(path))
    assert said in str(refused.value)
    assert refused.value.expected


def test_a_pipe_is_no_disk_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a file"):
        examine_image(str(tmp_path / "pipe"))
