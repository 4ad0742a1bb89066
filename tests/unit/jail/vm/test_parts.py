"""What doctor is told of each part."""

from __future__ import annotations

import pytest

from exeat.errors import JailError
from exeat.jail.vm import parts
from exeat.jail.vm.accel import Accel
from exeat.jail.vm.kernel import Kernel
from exeat.jail.vm.parts import PartLine, examine_parts
from exeat.jail.vm.programs import GET_VIRTIOFSD, Virtiofsd


@pytest.fixture(autouse=True)
def _all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "find_qemu", lambda environ: "/usr/bin/qemu")
    monkeypatch.setattr(parts, "qemu_version", lambda path: "7.2.22")
    _kernel_with(monkeypatch, "virtiofs", "9p")
    monkeypatch.setattr(parts, "find_virtiofsd", lambda environ: Virtiofsd("/usr/libexec/virtiofsd", True))
    monkeypatch.setattr(parts, "look_at_kvm", lambda folder, is_fresh: Accel("kvm", "/dev/kvm runs guests"))


def _kernel_with(monkeypatch: pytest.MonkeyPatch, *shares: str) -> None:
    kernel = Kernel("/boot/vmlinuz-6.1.0", "6.1.0", "/lib/modules/6.1.0", shares)
    monkeypatch.setattr(parts, "find_kernel", lambda named, environ: kernel)


def _lines() -> dict[str, PartLine]:
    return {line.name: line for line in examine_parts({})}


def test_all_there() -> None:
    lines = examine_parts({})
    assert [(line.name, line.ok, line.fix) for line in lines] == [
        ("qemu", True, ""),
        ("kernel", True, ""),
        ("files", True, ""),
        ("acceleration", True, ""),
    ]
    assert [line.to_texts() for line in lines] == [
        ["version 7.2.22, /usr/bin/qemu"],
        ["Linux 6.1.0, /boot/vmlinuz-6.1.0"],
        ["shared by virtiofs, /usr/libexec/virtiofsd"],
        ["KVM: /dev/kvm runs guests"],
    ]


def test_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*more: object) -> str:
        raise JailError("it is missing", detail="nowhere", fix="install it")

    monkeypatch.setattr(parts, "find_qemu", refuse)
    monkeypatch.setattr(parts, "find_kernel", refuse)
    monkeypatch.setattr(parts, "look_at_kvm", lambda folder, is_fresh: Accel("tcg", "no /dev/kvm", "modprobe"))
    lines = _lines()
    assert not any(line.ok for line in lines.values())
    assert lines["qemu"].to_texts() == ["it is missing: nowhere", "to get it: install it"]
    assert lines["kernel"].fix == "install it"
    assert {name for name, line in lines.items() if line.is_needed} == {"qemu", "kernel", "files"}
    assert lines["acceleration"].to_texts() == ["emulated (tcg): no /dev/kvm", "to get it: modprobe"]


def test_the_slower_way_to_share_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _kernel_with(monkeypatch, "9p")
    assert "no virtiofs" in _lines()["files"].why
    monkeypatch.setattr(parts, "find_virtiofsd", lambda environ: None)
    line = _lines()["files"]
    assert (line.ok, line.is_needed, line.fix) == (False, False, GET_VIRTIOFSD)


def test_a_qemu_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "qemu_version", lambda path: "")
    assert not _lines()["qemu"].ok
