"""The kernel inside a bzImage: unpacked once, known by where it is from, and left packed where that is no use."""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.jail.vm.host import compression, unpacked
from exeat.jail.vm.host.kernel_image import read_image
from exeat.jail.vm.host.unpacked import open_unpacked
from tests.unit.jail.vm.host.made_kernels import bz_image, vmlinux, with_size

_INSIDE = vmlinux(size=100_000)
Open = Callable[[], bytes | None]


def _packed(inside: bytes) -> bytes:
    return bz_image(payload=with_size(lzma.compress(inside), inside))


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinuz"
    path.write_bytes(_packed(_INSIDE))
    return path


@pytest.fixture
def opened(kernel: Path, tmp_path: Path) -> Open:
    """What QEMU would read; None: the file as it is."""

    def opened() -> bytes | None:
        with kernel.open("rb") as file:
            descriptor = open_unpacked(file.fileno(), read_image(file.fileno()), str(tmp_path / "kept"))
        if descriptor is None:
            return None
        assert not os.get_inheritable(descriptor)
        with open(f"/proc/self/fd/{descriptor}", "rb") as again:  # as QEMU opens it
            content = again.read()
        os.close(descriptor)
        return content

    return opened


@pytest.fixture
def unpackings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that something was unpacked."""
    seen: list[int] = []
    real = compression.unpack

    def unpack(content: bytes, most: int) -> bytes:
        seen.append(most)
        return real(content, most)

    monkeypatch.setattr(unpacked, "unpack", unpack)
    return seen


def _kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "kept").iterdir())


def test_it_is_unpacked_once(opened: Open, unpackings: list[int], tmp_path: Path) -> None:
    assert opened() == _INSIDE
    assert opened() == _INSIDE
    assert len(unpackings) == 1
    assert [path.name.startswith("vmlinux-") for path in _kept(tmp_path)] == [True]


def test_another_kernel_under_the_same_path_is_unpacked_itself(opened: Open, kernel: Path, tmp_path: Path) -> None:
    opened()
    other = vmlinux("6.2.0", size=100_000)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(_packed(other))
    os.utime(fresh, ns=(kernel.stat().st_atime_ns, kernel.stat().st_mtime_ns))
    fresh.rename(kernel)
    assert opened() == other
    for number in range(3, 6):
        kernel.write_bytes(_packed(vmlinux(f"6.{number}.0", size=90_000 + number)))
        opened()
    assert len(_kept(tmp_path)) == 2


@pytest.mark.threat("T-V31")
def test_half_a_file_is_not_used(opened: Open, unpackings: list[int], tmp_path: Path) -> None:
    opened()
    os.truncate(_kept(tmp_path)[0], 50_000)
    assert opened() == _INSIDE
    assert len(unpackings) == 2


def test_where_nothing_can_be_kept_it_is_in_memory(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"not a folder")
    assert opened() == _INSIDE


@pytest.mark.threat("T-V31")
def test_a_file_that_others_may_write_to_is_made_again(opened: Open, tmp_path: Path) -> None:
    opened()
    kept = _kept(tmp_path)[0]
    kept.write_bytes(b"X" * len(_INSIDE))
    kept.chmod(0o666)
    assert opened() == _INSIDE


def test_one_that_qemu_could_not_enter_is_left_packed_and_not_tried_again(
    opened: Open, kernel: Path, unpackings: list[int]
) -> None:
    kernel.write_bytes(_packed(vmlinux(notes=b"", size=100_000)))
    assert opened() is None
    assert opened() is None
    assert len(unpackings) == 1


@pytest.mark.threat("T-V32")
@pytest.mark.parametrize(
    "content",
    [
        bz_image(payload=with_size(b"unknown", bytes(1000))),
        bz_image(payload=with_size(lzma.compress(_INSIDE)[:-20], _INSIDE)),
        bz_image(payload=with_size(lzma.compress(_INSIDE + b"more"), _INSIDE)),
        bz_image(payload=b""),
    ],
    ids=["unknown", "damaged", "larger than it says", "none"],
)
def test_what_cannot_be_unpacked_is_left_to_the_guest(opened: Open, kernel: Path, content: bytes) -> None:
    kernel.write_bytes(content)
    assert opened() is None
