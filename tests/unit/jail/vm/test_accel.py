"""KVM or emulation: which, why, and that a kernel which holds the probe does not hold exeat."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ConfigError, JailError
from exeat.jail.vm import accel
from exeat.jail.vm.accel import choose, look_at_kvm
from exeat.jail.vm.host.kvm_guest import READY
from tests.support.jails.forked import attempt

Says = Callable[..., None]


@pytest.fixture
def kept(tmp_path: Path) -> str:
    return str(tmp_path / "kept")


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Says:
    """A device that opens, and a guest's process that answers so. "": it is held by the kernel, and says nothing."""
    (tmp_path / "kvm").write_bytes(b"")
    (tmp_path / "boot_id").write_text("this-boot\n")
    monkeypatch.setattr(accel, "_DEVICE", str(tmp_path / "kvm"))
    monkeypatch.setattr(accel, "_BOOT_ID", str(tmp_path / "boot_id"))

    def says(*lines: str, then_waits: bool = False) -> None:
        def run_guest(device: int, writer: int, limit_s: float) -> None:
            if os.fork() == 0:
                for line in lines:
                    os.write(writer, line.encode())
                if then_waits:
                    time.sleep(1)
            os._exit(0)

        monkeypatch.setattr(accel, "run_guest", run_guest)

    return says


_READY = READY.decode()


def test_what_runs_is_taken(says: Says, kept: str) -> None:
    says(_READY, "good\n")
    found = choose("auto", False, kept)
    assert (found.kind, found.fix) == ("kvm", "")
    assert choose("kvm").kind == choose("auto", insists=True).kind == "kvm"
    assert not Path(kept).exists()


def test_emulation_is_had_without_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "look_at_kvm", lambda *more, **named: pytest.fail("a probe"))
    assert choose("tcg").kind == "tcg"


@pytest.mark.parametrize(("wanted", "insists"), [("tcg", True), ("hvf", False)])
def test_what_makes_no_sense_is_refused(wanted: str, insists: bool) -> None:
    with pytest.raises(ConfigError):
        choose(wanted, insists)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([_READY, "slow\n"], "interprets"),
        ([_READY, "stuck\n"], "does not run guests"),
        ([_READY], "does not run guests"),
        ([], "does not run guests"),
        ([f"KVM_CREATE_VM {errno.EBUSY}\n"], "another hypervisor"),
        ([_READY, f"KVM_RUN {errno.EINVAL}\n"], "KVM_RUN: Invalid argument"),
        (["\n"], "refuses"),
        (["\xff\xff nonsense\n"], "refuses"),
    ],
)
def test_what_does_not_run_is_told_and_refused_to_who_insists(says: Says, lines: list[str], why: str) -> None:
    says(*lines)
    found = choose()
    assert found.kind == "tcg"
    assert why in found.why
    with pytest.raises(JailError) as caught:
        choose("kvm")
    assert why in caught.value.detail
    assert caught.value.is_missing
    assert caught.value.fix == found.fix


@pytest.mark.parametrize("lines", [[], [_READY]])
def test_a_guest_that_the_kernel_holds_is_not_waited_for(
    says: Says, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accel, "_WAIT_S", 0.1)
    monkeypatch.setattr(accel, "_RUN_S", 0.1)
    says(*lines, "", then_waits=True)

    def probe() -> None:
        assert "does not run guests" in choose().why

    # In a process without other children: nothing of the guest is its to reap.
    assert attempt(probe, lambda: os.waitpid(-1, os.WNOHANG)) == "ECHILD"


def test_a_probe_that_failed_is_remembered_until_the_machine_starts_again(
    says: Says, kept: str, tmp_path: Path
) -> None:
    says(_READY, "slow\n")
    first = choose("auto", False, kept)
    says(_READY, "good\n")
    assert choose("auto", False, kept) == first
    (tmp_path / "boot_id").write_text("next-boot\n")
    assert choose("auto", False, kept).kind == "kvm"


def test_a_driver_that_is_loaded_again_is_tried_again(says: Says, kept: str, tmp_path: Path) -> None:
    says(_READY, "slow\n")
    choose("auto", False, kept)
    (tmp_path / "again").write_bytes(b"")
    (tmp_path / "again").rename(tmp_path / "kvm")
    says(_READY, "good\n")
    assert choose("auto", False, kept).kind == "kvm"


def test_who_insists_has_it_tried_again_and_all_profit(says: Says, kept: str) -> None:
    says(_READY, "stuck\n")
    choose("auto", False, kept)
    says(_READY, "good\n")
    assert choose("kvm", False, kept).kind == "kvm"
    assert choose("auto", False, kept).kind == "kvm"


def test_what_may_be_different_in_a_moment_is_not_remembered(says: Says, kept: str) -> None:
    says(f"KVM_CREATE_VM {errno.EBUSY}\n")
    choose("auto", False, kept)
    says(_READY, "good\n")
    assert choose("auto", False, kept).kind == "kvm"


def test_what_is_remembered_is_not_believed_if_it_is_strange(says: Says, kept: str, tmp_path: Path) -> None:
    says(_READY, "slow\n")
    choose("auto", False, kept)
    note = Path(kept) / "kvm-probe"
    note.write_text(note.read_text().replace("slow", "good\x1b[2J"))
    assert "interprets" in choose("auto", False, kept).why


def test_a_folder_that_cannot_be_written_costs_a_probe_and_no_more(says: Says, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    says(_READY, "slow\n")
    assert "interprets" in choose("auto", False, str(tmp_path / "file")).why


@pytest.mark.parametrize(
    ("number", "why", "fix"),
    [
        (errno.ENOENT, "there is no /dev/kvm", "modprobe"),
        (errno.EACCES, "you may not use", "usermod -aG kvm"),
        (errno.EIO, "cannot be opened", ""),
    ],
)
def test_a_device_that_does_not_open(monkeypatch: pytest.MonkeyPatch, number: int, why: str, fix: str) -> None:
    def refuse(*more: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    found = look_at_kvm()
    assert found.kind == "tcg"
    assert why in found.why
    assert fix in found.fix
