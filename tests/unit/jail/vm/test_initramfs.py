"""What a guest starts with, read back."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from exeat.jail.vm.initramfs import build

_MODULES = [(name, name.encode() * length) for length, name in enumerate(("virtio", "virtio_pci", "fuse", "a"), 1)]


def _read(archive: bytes) -> dict[str, tuple[list[int], bytes]]:
    """Each entry's fields and content, as the kernel reads them."""
    found: dict[str, tuple[list[int], bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        length, name_length = fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_length]
        assert name.endswith(b"\0")
        at = at + 110 + name_length + 3 & ~3
        if name == b"TRAILER!!!\0":
            assert at == len(archive)
            return found
        found[name[:-1].decode()] = fields, archive[at : at + length]
        at = at + length + 3 & ~3


def test_the_agent_the_modules_in_order_and_a_console() -> None:
    found = _read(build(b"the agent", _MODULES))
    assert {name: content for name, (_, content) in found.items()} == {
        "init": b"the agent",
        "dev": b"",
        "modules": b"",
        "modules/00-virtio.ko": b"virtio",
        "modules/01-virtio_pci.ko": b"virtio_pci" * 2,
        "modules/02-fuse.ko": b"fuse" * 3,
        "modules/03-a.ko": b"aaaa",
        "dev/console": b"",
    }
    modes = {name: fields[1] for name, (fields, _) in found.items()}
    assert modes["init"] == 0o100755
    assert modes["dev"] == modes["modules"] == 0o040755
    assert modes["modules/00-virtio.ko"] == 0o100600
    assert modes["dev/console"] == 0o020600
    assert found["dev/console"][0][9:11] == [5, 1]
    names = list(found)
    assert all(names.index(name.rpartition("/")[0]) < names.index(name) for name in names if "/" in name)


def test_without_modules() -> None:
    assert set(_read(build(b"", []))) == {"init", "dev", "modules", "dev/console"}


def test_the_same_is_built_of_the_same() -> None:
    assert build(b"agent", _MODULES) == build(b"agent", _MODULES)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio")
def test_cpio_reads_it() -> None:
    listed = subprocess.run(["cpio", "-tv"], input=build(b"x", _MODULES), capture_output=True, check=True).stdout
    assert [line.split()[-1] for line in listed.decode().splitlines()][:2] == ["init", "dev"]
    assert b"modules/03-a.ko" in listed


def test_modules_that_are_loaded_if_need_be() -> None:
    found = _read(build(b"", [("ext4", b"1")], [("raid6_pq", b"2"), ("btrfs", b"3")]))
    assert [name for name in found if name.startswith("more-modules/")] == [
        "more-modules/00-raid6_pq.ko",
        "more-modules/01-btrfs.ko",
    ]
    assert "more-modules" not in _read(build(b"", []))
