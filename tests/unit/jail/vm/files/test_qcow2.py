"""An empty disk over an image: as QEMU has them, and looked at again before it is used."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from exeat.jail.vm.files.qcow2 import MOST_BYTES, Head, empty_overlay, overlay_fault, read_head

_SIZES = (512, 1 << 20, 3 << 30, (5 << 40) + 512, MOST_BYTES)


@pytest.mark.parametrize("size", _SIZES)
def test_an_empty_one_is_read_back(size: int) -> None:
    made = empty_overlay(size)
    assert read_head(made) == Head(3, size, names_files=False, is_encrypted=False, features=0)
    assert overlay_fault(made, size) == ""
    assert len(made) < 1 << 20


@pytest.mark.parametrize("size", _SIZES)
def test_qemu_finds_nothing_wrong_with_it(size: int, tmp_path: Path) -> None:
    program = shutil.which("qemu-img")
    if program is None:
        pytest.skip("qemu-img is not installed")
    path = tmp_path / "disk"
    path.write_bytes(empty_overlay(size))
    checked = subprocess.run([program, "check", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    told = json.loads(subprocess.check_output([program, "info", "--output=json", str(path)]))
    assert (told["format"], told["virtual-size"]) == ("qcow2", size)
    assert "backing-filename" not in told


@pytest.mark.parametrize("size", [0, -1, MOST_BYTES + 1])
def test_no_disk_of_that_size(size: int) -> None:
    with pytest.raises(ValueError, match="no disk has"):
        empty_overlay(size)


def _changed(at: int, form: str, value: int) -> bytes:
    made = bytearray(empty_overlay(1 << 30))
    struct.pack_into(form, made, at, value)
    return bytes(made)


@pytest.mark.threat("T-V41")
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (_changed(8, ">Q", 0x300), "not as exeat has made it"),  # a file below it
        (_changed(72, ">Q", 1 << 2), "not as exeat has made it"),  # its data in another file
        (_changed(72, ">Q", 1 << 40), "not as exeat has made it"),
        (_changed(32, ">I", 2), "not as exeat has made it"),  # encrypted
        (_changed(24, ">Q", 2 << 30), "of another size"),
        (_changed(4, ">I", 2), "not a disk as exeat makes them"),
        (_changed(4, ">I", 4), "not a disk as exeat makes them"),
        (b"", "not a disk as exeat makes them"),
        (empty_overlay(1 << 30)[:80], "not a disk as exeat makes them"),
        (b"\0" * 4096, "not a disk as exeat makes them"),
    ],
)
def test_what_a_qemu_that_was_taken_over_may_have_left(content: bytes, fault: str) -> None:
    assert fault in overlay_fault(content, 1 << 30)


def test_one_that_was_not_closed_is_qemus_to_repair() -> None:
    assert overlay_fault(_changed(72, ">Q", 1), 1 << 30) == ""
