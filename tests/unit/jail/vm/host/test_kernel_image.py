"""What a kernel's file says of itself, and files that are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.jail.vm.host.kernel_image import KernelImage, UnusableError, has_pvh_entry, read_image, unpacked_size
from tests.unit.jail.vm.host.made_kernels import OTHER_NOTE, PVH_NOTE, bz_image, vmlinux, with_size

Read = Callable[[bytes], KernelImage]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(content: bytes) -> KernelImage:
        path = tmp_path / "kernel"
        path.write_bytes(content)
        with path.open("rb") as file:
            return read_image(file.fileno())

    return read


def test_a_bzimage_says_its_version_and_where_the_packed_kernel_is(read: Read) -> None:
    content = bz_image("6.1.0-54-cloud-amd64", b"packed")
    image = read(content)
    start, length = image.payload
    assert image.version == "6.1.0-54-cloud-amd64"
    assert content[start : start + length] == b"packed"


def test_a_vmlinux_says_its_version_in_a_sentence(read: Read) -> None:
    assert read(vmlinux("6.9.1-custom")) == KernelImage("6.9.1-custom", (0, 0))


@pytest.mark.threat("T-V32")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a Linux kernel"),
        (b"#!/bin/sh\n" * 100, "not a Linux kernel"),
        (bz_image()[:0x240], "not a Linux kernel"),
        (bz_image(protocol=0x206), "32 bits"),
        (bz_image(load_flags=0), "32 bits"),
        (bz_image(""), "which version"),
        (bz_image("../../etc"), "which version"),
        (bz_image("6.1/../.."), "which version"),
        (vmlinux(machine=183), "not one for x86-64"),
        (b"\x7fELF\x01\x01" + bytes(600), "not one for x86-64"),
        (vmlinux(notes=OTHER_NOTE), "CONFIG_PVH"),
        (vmlinux(version=""), "which version"),
    ],
)
def test_what_is_no_kernel_is_refused_in_words(read: Read, content: bytes, why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        read(content)


@pytest.mark.threat("T-V32")
@pytest.mark.parametrize(
    ("content", "can"),
    [
        (vmlinux(), True),
        (vmlinux(notes=PVH_NOTE), True),
        (vmlinux(notes=b""), False),
        (vmlinux(notes=PVH_NOTE[:8]), False),
        (vmlinux(notes=b"\xff" * 64), False),  # lengths that lead out of the file
        (vmlinux()[:100], False),
        (b"\x7fELF\x02\x01" + b"\xff" * 200, False),
        (b"", False),
    ],
)
def test_the_note_by_which_qemu_enters(content: bytes, can: bool) -> None:
    assert has_pvh_entry(content) is can


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        (with_size(b"packed", bytes(5000)), 5000),
        (with_size(b"packed", b"tiny"), 0),  # nothing becomes smaller
        (b"packed\xff\xff\xff\xff", 0),  # 4 GiB
        (b"", 0),
    ],
)
def test_the_size_that_it_has_unpacked(tmp_path: Path, payload: bytes, size: int) -> None:
    (tmp_path / "kernel").write_bytes(bz_image(payload=payload))
    with (tmp_path / "kernel").open("rb") as file:
        assert unpacked_size(file.fileno(), read_image(file.fileno())) == size


@pytest.mark.parametrize("path", sorted(Path("/boot").glob("vmlinuz-*-amd64")) or [None])
def test_kernels_of_this_machine(path: Path | None) -> None:
    if path is None or not os.access(path, os.R_OK):
        pytest.skip("no kernel of Debian's here that may be read")
    with path.open("rb") as file:
        image = read_image(file.fileno())
        assert f"vmlinuz-{image.version}" == path.name
        assert unpacked_size(file.fileno(), image) > 10 << 20
