"""Which kernel a guest boots, what it is told if there is none, and what it starts with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.vm import kernel as kernel_module
from exeat.jail.vm.host.kernel_image import has_pvh_entry
from exeat.jail.vm.kernel import NINE_P, VIRTIOFS, Kernel, find_kernel, module_files, open_kernel
from exeat.jail.vm.programs import Virtiofsd
from tests.support.runs.running import AS_ROOT, NOBODY
from tests.unit.jail.vm.host.made_kernels import FOR_9P, FOR_VIRTIOFS, USUAL, bz_image, install, vmlinux

_BOTH = USUAL | FOR_VIRTIOFS | FOR_9P
Find = Callable[..., Kernel]


@pytest.fixture
def virtiofsd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "find_virtiofsd", lambda environ: Virtiofsd("/usr/libexec/virtiofsd", True))


@pytest.fixture
def find(tmp_path: Path, virtiofsd: None) -> Find:
    def find(named: str = "", **environ: str) -> Kernel:
        return find_kernel(named, environ, root=str(tmp_path))

    return find


def _refused(find: Find, *arguments: str, **environ: str) -> JailError:
    with pytest.raises(JailError) as caught:
        find(*arguments, **environ)
    assert caught.value.fix
    return caught.value


def test_the_newest_is_taken(find: Find, tmp_path: Path) -> None:
    for version in ("6.9.0-1-amd64", "6.10.0-1-amd64", "6.1.0-54-amd64"):
        install(tmp_path, version, _BOTH)
    found = find()
    assert found.path == f"{tmp_path}/boot/vmlinuz-6.10.0-1-amd64"
    assert found.version == "6.10.0-1-amd64"
    assert found.modules_folder == f"{tmp_path}/lib/modules/6.10.0-1-amd64"
    assert found.shares == (VIRTIOFS, NINE_P)


def test_before_it_the_running_one_and_before_that_one_made_for_guests(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "99.0.0-1-amd64", _BOTH)
    install(tmp_path, os.uname().release, _BOTH)
    assert find().version == os.uname().release
    install(tmp_path, "6.1.0-54-cloud-amd64", _BOTH)
    assert find().version == "6.1.0-54-cloud-amd64"


def test_one_that_lacks_something_is_passed_over(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.3.0-cloud", USUAL)
    install(tmp_path, "6.2.0-cloud", FOR_9P)
    install(tmp_path, "6.1.0-cloud", _BOTH, kernel=b"nonsense")
    install(tmp_path, "6.0.0", _BOTH)
    assert find().version == "6.0.0"


def test_what_is_built_in_counts(find: Find, tmp_path: Path) -> None:
    builtin = [name.replace("virtio_", "virtio-") for name in USUAL]
    install(tmp_path, "6.1.0", {"kernel/fs/fuse/virtiofs.ko": ""}, builtin)
    found = find()
    assert found.shares == (VIRTIOFS,)
    assert [name for name, _ in module_files(found, ["virtio_pci"])] == []
    assert [name for name, _ in module_files(found, ["virtio_pci", "virtiofs"])] == ["virtiofs"]


def test_kernels_among_their_modules_as_fedora_and_arch_have_them(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.9.1-arch1-1", _BOTH).rename(tmp_path / "lib/modules/6.9.1-arch1-1/vmlinuz")
    found = find()
    assert found.path == f"{tmp_path}/lib/modules/6.9.1-arch1-1/vmlinuz"
    assert found.modules_folder == f"{tmp_path}/lib/modules/6.9.1-arch1-1"


def test_without_virtiofsd_only_9p_will_do(tmp_path: Path, find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "find_virtiofsd", lambda environ: None)
    install(tmp_path, "6.1.0-cloud", USUAL | FOR_VIRTIOFS)
    assert "virtiofs alone" in _refused(find).detail
    install(tmp_path, "6.1.0", _BOTH)
    found = find()
    assert (found.version, found.shares) == ("6.1.0", (NINE_P,))


@pytest.mark.parametrize("by", ["argument", "variable"])
@pytest.mark.parametrize("lib", ["lib", "usr/lib"])
def test_a_kernel_can_be_named_and_its_modules_may_be_in_its_package(
    find: Find, tmp_path: Path, by: str, lib: str
) -> None:
    install(tmp_path, "6.1.0", _BOTH)
    package = tmp_path / "unpacked"
    path = str(install(package, "6.2.0", USUAL | FOR_9P))
    if lib != "lib":
        (package / "usr").mkdir()
        (package / "lib").rename(package / lib)
    found = find(path) if by == "argument" else find(EXEAT_KERNEL=path)
    assert found == Kernel(path, "6.2.0", f"{package}/{lib}/modules/6.2.0", (NINE_P,))


@AS_ROOT
@pytest.mark.threat("T-V60")
def test_modules_of_another_user_are_not_those_of_a_kernel(find: Find, tmp_path: Path) -> None:
    """Above the kernel's folder is one that all write to, as for /tmp/mine/vmlinuz."""
    version = "6.1.0"
    install(tmp_path, version, _BOTH)
    shared = tmp_path / "shared"
    install(shared, version, _BOTH)
    (shared / "mine").mkdir()
    mine = shared / "mine/vmlinuz"
    mine.write_bytes(vmlinux(version))
    modules = shared / "lib/modules" / version
    assert find(str(mine)).modules_folder == str(modules)  # it is looked for there
    os.chown(modules, NOBODY, NOBODY)
    assert find(str(mine)).modules_folder == f"{tmp_path}/lib/modules/{version}"


def test_a_named_one_wherever_it_lies_has_the_modules_of_its_version(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.1.0", _BOTH)
    (tmp_path / "mine").write_bytes(vmlinux("6.1.0"))
    assert find(str(tmp_path / "mine")).modules_folder == f"{tmp_path}/lib/modules/6.1.0"


def _place(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_named_one_that_cannot_be_used_is_refused_and_no_other_taken(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.1.0", _BOTH)
    os.mkfifo(tmp_path / "pipe")
    unlisted = install(tmp_path / "package", "6.4.0", _BOTH)
    (tmp_path / "package/lib/modules/6.4.0/modules.dep").unlink()
    cases = {
        tmp_path / "none": "no such file",
        tmp_path / "boot": "folder",
        tmp_path / "pipe": "not a regular file",
        _place(tmp_path / "text", b"#!/bin/sh\n" * 200): "not a Linux kernel",
        _place(tmp_path / "alone", bz_image("6.5.0")): "no modules here",
        unlisted: f"depmod -b {tmp_path}/package 6.4.0",
        install(tmp_path, "6.6.0", USUAL): "neither virtiofs nor 9p",
        install(tmp_path, "6.7.0", FOR_9P): "virtio_pci, virtio_console, virtio_net",
    }
    for path, why in cases.items():
        error = _refused(find, str(path))
        assert str(path) in error.public
        assert why in error.detail, path
        assert _refused(find, EXEAT_KERNEL=str(path)).detail == error.detail


def test_where_there_is_none_it_says_what_to_install(find: Find, tmp_path: Path) -> None:
    error = _refused(find)
    assert error.is_missing
    assert "apt install" in error.fix
    assert "--kernel FILE" in error.fix
    for minor in range(5):
        install(tmp_path, f"6.{minor}.0", USUAL)
    error = _refused(find)
    assert "neither virtiofs nor 9p" in error.detail
    assert "vmlinuz-6.4.0" in error.detail
    assert "2 more" in error.detail


def test_kernels_that_only_root_may_read(find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ubuntu has them. Root may read everything, so that is said by the test."""
    path = install(tmp_path, "6.8.0-40-generic", _BOTH)
    path.chmod(0)
    real = os.open

    def refuse(name: str, *more: int, **named: int) -> int:
        if name == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    for error in (_refused(find), _refused(find, str(path))):
        assert "may not read" in error.detail
        assert f"sudo chmod +r {path}" in error.fix


def test_modules_come_in_the_order_to_load_them_in_each_once(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.1.0", _BOTH)
    missing: list[str] = []
    files = module_files(find(), ["virtio_pci", "virtiofs", "virtio_pci"], ["9p", "nonesuch"], missing)
    names = [name for name, _ in files]
    assert names == ["virtio", "virtio_ring", "virtio_pci", "fuse", "virtiofs", "9pnet", "9p"]
    assert files[0][1] == b"\x7fELFvirtio.ko"
    assert missing == ["nonesuch"]


def test_a_module_that_is_needed_and_not_there_is_an_error(find: Find, tmp_path: Path) -> None:
    install(tmp_path, "6.1.0", _BOTH)
    found = find()
    with pytest.raises(JailError, match="virtio_blk"):
        module_files(found, ["virtio_blk"])
    (tmp_path / "lib/modules/6.1.0/modules.dep").unlink()
    with pytest.raises(JailError, match="modules cannot be read"):
        module_files(found, ["virtio_pci"])


def test_a_kernel_that_cannot_be_unpacked_is_opened_as_it_is(find: Find, tmp_path: Path) -> None:
    path = install(tmp_path, "6.1.0", _BOTH)
    found = find()
    with open(open_kernel(found, str(tmp_path / "kept")), "rb") as file:
        assert file.read() == path.read_bytes()
    path.unlink()
    with pytest.raises(JailError, match="cannot be used"):
        open_kernel(found, str(tmp_path / "kept"))


@pytest.mark.thorough
def test_a_kernel_of_this_machine(tmp_path: Path) -> None:
    """Whatever is installed: found, its modules complete, and unpacked where it can be."""
    try:
        found = find_kernel("", {"PATH": os.defpath})
    except JailError as error:
        pytest.skip(str(error))
    wanted = ["virtiofs"] if VIRTIOFS in found.shares else ["9p", "9pnet_virtio"]
    files = module_files(found, ["virtio_pci", "virtio_console", "virtio_net", *wanted])
    assert all(content.startswith(b"\x7fELF") for _, content in files)
    with open(open_kernel(found, str(tmp_path / "kept")), "rb") as file:
        content = file.read()
    assert has_pvh_entry(content) or content == Path(found.path).read_bytes()
