"""The guest that tries KVM: its process ends in time, holds nothing of ours, and says how it went."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from exeat.jail.vm.host import kvm_guest
from exeat.jail.vm.host.kvm_guest import GOOD, READY, SLOW, STUCK, run_guest


def _said(device: int, limit_s: float) -> bytes:
    """All that it says until it is gone."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        run_guest(device, writer, limit_s)
    os.close(writer)
    os.waitpid(middle, 0)
    with open(reader, "rb") as file:
        return file.read()


def test_what_is_no_kvm_is_told_by_the_first_step(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        assert _said(file.fileno(), 30) == b"KVM_CREATE_VM 25\n"


def test_it_ends_itself_in_time_and_holds_no_stream_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else who reads exeat's output to its end would wait for a process that the kernel holds."""

    def held(device: int, writer: int) -> str:
        os.write(writer, " ".join(sorted(os.listdir("/proc/self/fd"), key=int)).encode() + b"\n")  # noqa: PTH208
        time.sleep(1000)
        return GOOD

    monkeypatch.setattr(kvm_guest, "_run", held)
    with (tmp_path / "file").open("w+b") as device:
        said = _said(device.fileno(), 0.2)
        assert said.endswith(b"\n")
        assert str(device.fileno()).encode() in said.split()
    assert len(said.split()) == 3  # the device, the pipe, and the folder that was listed


def test_this_machines_own() -> None:
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("no /dev/kvm that may be used")
    try:
        said = _said(device, 30)
    finally:
        os.close(device)
    assert said.removeprefix(READY).decode().rstrip("\n") in (GOOD, SLOW, STUCK) or said.startswith(b"KVM_")
