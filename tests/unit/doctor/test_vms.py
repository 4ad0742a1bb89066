"""What `exeat doctor` says of virtual machines: what is there, what is missing, and how to get it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from exeat.doctor.report import Report, to_lines
from exeat.doctor.vms import VmLine, examine_vms
from exeat.errors import JailError
from exeat.jail.vm import accel, kernel, programs
from exeat.jail.vm.accel import Accel
from exeat.jail.vm.kernel import Kernel
from exeat.jail.vm.programs import Virtiofsd


def lines_of(*parts: VmLine) -> str:
    return " ".join("\n".join(to_lines(Report((), (), (), vms=parts))).split())


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.setattr(programs, "find_qemu", lambda environ: "/usr/bin/qemu-system-x86_64")
    monkeypatch.setattr(programs, "qemu_version", lambda path: "7.2.22")
    monkeypatch.setattr(programs, "find_virtiofsd", lambda environ: Virtiofsd("/usr/libexec/virtiofsd", True))
    found = Kernel("/boot/vmlinuz-6.1.0-1-cloud-amd64", "6.1.0-1-cloud-amd64", "/lib/modules/x", ("virtiofs",))
    monkeypatch.setattr(kernel, "find_kernel", lambda named, environ: found)
    monkeypatch.setattr(accel, "choose", lambda: Accel("kvm", "/dev/kvm runs guests"))


@pytest.mark.usefixtures("whole")
def test_a_machine_that_has_everything() -> None:
    parts = examine_vms()
    assert [(part.part, part.ok) for part in parts] == [
        ("qemu", True), ("kernel", True), ("files", True), ("accel", True), ("memory", True),
    ]  # fmt: skip
    text = lines_of(*parts)
    assert "Virtual machines, for exeat run --vm" in text
    assert "qemu yes /usr/bin/qemu-system-x86_64, version 7.2.22" in text
    assert "kernel yes /boot/vmlinuz-6.1.0-1-cloud-amd64, which shares files by virtiofs" in text
    assert "to get it" not in text
    assert Report((), (), (), vms=parts).to_dict()["vms"] == [asdict(part) for part in parts]


@pytest.mark.usefixtures("whole")
def test_what_is_missing_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once, and what can be done without is told from what cannot."""

    def refuse(*_: object) -> Kernel:
        raise JailError("--vm needs a kernel", detail="you may not read it", fix="sudo chmod +r /boot/vmlinuz-x")

    monkeypatch.setattr(kernel, "find_kernel", refuse)
    monkeypatch.setattr(programs, "find_virtiofsd", lambda environ: None)
    monkeypatch.setattr(accel, "choose", lambda: Accel("tcg", "you may not open /dev/kvm", "sudo usermod -aG kvm you"))
    parts = {part.part: part for part in examine_vms()}
    assert [part.part for part in parts.values() if not part.ok] == ["kernel", "files", "accel"]
    assert [part.part for part in parts.values() if not part.ok and part.is_needed] == ["kernel"]
    text = lines_of(*parts.values())
    assert "kernel no --vm needs a kernel: you may not read it to get it: sudo chmod +r /boot/vmlinuz-x" in text
    assert "accel no guests are emulated (tcg): you may not open /dev/kvm to get it: sudo usermod -aG kvm you" in text
    assert "sudo apt install virtiofsd" in text


def test_without_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the real search: a PATH without it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = [part for part in examine_vms() if part.part == "qemu"]
    assert not line.ok
    assert "apt install qemu-system-x86" in line.fix or "x86-64" in line.why
