"""Modules in the lists that depmod makes, and as the kernel takes them."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.vm.host.modules import ModuleLists, module_name, read_module
from exeat.secrets.stream.unpacking import zstd_library
from tests.unit.jail.vm.host.made_kernels import FOR_VIRTIOFS, USUAL, install

_MODULE = b"\x7fELF" + b"a module" * 100


def _lists(root: Path, modules: dict[str, str], builtin: tuple[str, ...] = ()) -> ModuleLists:
    install(root, "6.1.0", modules, builtin)
    return ModuleLists(str(root / "lib/modules/6.1.0"))


def test_what_is_needed_comes_first_and_the_module_last(tmp_path: Path) -> None:
    lists = _lists(tmp_path, USUAL | FOR_VIRTIOFS)
    needs = lists.needs_of("virtiofs") or []
    assert [module_name(path) for path in needs] == ["fuse", "virtio", "virtio_ring", "virtiofs"]
    assert lists.needs_of("virtio") == ["kernel/drivers/virtio/virtio.ko"]


def test_a_module_that_is_only_a_part_of_anothers_name_is_not_there(tmp_path: Path) -> None:
    lists = _lists(tmp_path, {"kernel/a/not_virtio_net.ko": "", "kernel/a/virtio_net_more.ko": "kernel/a/other.ko"})
    assert lists.needs_of("virtio_net") is None
    assert lists.needs_of("other") is None  # named, but without a line of its own
    assert not lists.has("virtio_net")


@pytest.mark.parametrize("file", ["virtio-rng.ko", "virtio_rng.ko", "virtio-rng.ko.xz", "virtio_rng.ko.zst"])
@pytest.mark.parametrize("name", ["virtio-rng", "virtio_rng"])
def test_either_spelling_and_any_packing(tmp_path: Path, file: str, name: str) -> None:
    lists = _lists(tmp_path, {f"kernel/{file}": ""})
    assert lists.needs_of(name) == [f"kernel/{file}"]
    assert module_name(f"kernel/{file}") == "virtio_rng"


def test_what_is_built_in_is_there_and_needs_nothing(tmp_path: Path) -> None:
    lists = _lists(tmp_path, {}, ("kernel/drivers/virtio/virtio-pci.ko",))
    assert lists.has("virtio_pci")
    assert lists.is_builtin("virtio_pci")
    assert not lists.is_builtin("pci")
    assert lists.needs_of("virtio_pci") is None


def test_the_last_line_may_have_no_end(tmp_path: Path) -> None:
    lists = _lists(tmp_path, {})
    (tmp_path / "lib/modules/6.1.0/modules.dep").write_text("kernel/a.ko:\nkernel/b.ko: kernel/a.ko")
    assert ModuleLists(lists.folder).needs_of("b") == ["kernel/a.ko", "kernel/b.ko"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ko", _MODULE),
        (
            "a.ko.gz",
            gzip.compress(_MODULE, mtime=0),
        ),  # its bytes are in the name of the test, which all workers must agree on
        ("a.ko.xz", lzma.compress(_MODULE, check=lzma.CHECK_CRC32)),
        ("a.ko.zst", zstd_library().compress(_MODULE)),
    ],
)
def test_a_module_is_read_unpacked(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_module(str(tmp_path), name) == _MODULE


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "does not know"),
        (b"hello", "does not know"),
        (lzma.compress(_MODULE)[:40], "damaged"),
        (lzma.compress(b"no module"), "damaged"),
        (b"\x1f\x8b" + b"nonsense" * 8, "damaged"),
    ],
)
def test_a_damaged_module_is_told_by_its_name(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a-b.ko").write_bytes(content)
    with pytest.raises(JailError, match="a_b") as caught:
        read_module(str(tmp_path), "a-b.ko")
    assert why in str(caught.value)


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JailError, match="cannot be read"):
        read_module(str(tmp_path), "kernel/a.ko")
