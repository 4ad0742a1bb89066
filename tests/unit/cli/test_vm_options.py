"""The options of virtual machines: what they become in the settings of a run, and which combinations mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import exeat.run.main
from exeat.cli.main import main
from exeat.jail.container.options import Mount
from exeat.jail.vm.options import VmOptions
from exeat.run.settings import Preparations, RunSettings, make_plan

QCOW2 = b"QFI\xfb\0\0\0\x03" + bytes(16) + (1 << 30).to_bytes(8, "big") + bytes(480)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunSettings]:
    """The settings of runs that were asked for; none of them is run. Two images are in the working directory."""
    runs: list[RunSettings] = []

    def take(settings: RunSettings) -> int:
        runs.append(settings)
        return 0

    monkeypatch.setattr(exeat.run.main, "run", take)
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk.qcow2").write_bytes(QCOW2)
    (tmp_path / "disk.raw").write_bytes(bytes(510) + b"\x55\xaa" + bytes(512))
    (tmp_path / "text").write_text("not a disk")
    return runs


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--vm"], VmOptions()),
        (["--jail", "vm"], VmOptions()),
        (["--vm", "--jail", "vm"], VmOptions()),
        (["--kvm"], VmOptions(accel="kvm", insists=True)),
        (["--vm", "--kvm", "--accel", "kvm"], VmOptions(accel="kvm", insists=True)),
        (["--vm", "--accel", "kvm"], VmOptions(accel="kvm", insists=True)),
        (["--vm", "--accel", "tcg"], VmOptions(accel="tcg")),
        (["--vm", "--accel", "auto"], VmOptions()),
        (["--vm", "--memory", "512m", "--cpus", "2"], VmOptions(memory=512 << 20, cpus=2)),
        (["--vm", "--memory", "1G"], VmOptions(memory=1 << 30)),
        (["--vm", "--guest-root", "--time-limit", "90"], VmOptions(guest_root=True, time_limit_s=90.0)),
        (["--vm", "--time-limit", "1.5m"], VmOptions(time_limit_s=90.0)),
        (["--vm", "--time-limit", "2h"], VmOptions(time_limit_s=7200.0)),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_options(words: list[str], options: VmOptions, started: list[RunSettings]) -> None:
    assert main(["run", *words, "--", "true"]) == 0
    assert (started[0].jail, started[0].vm, started[0].container) == ("vm", options, None)


@pytest.mark.parametrize("name", ["disk.qcow2", "disk.raw"])
def test_an_image_and_what_is_mounted_in_it(name: str, started: list[RunSettings], tmp_path: Path) -> None:
    """Paths are full ones, since QEMU is started elsewhere."""
    assert main(["run", "--vm", "--image", name, "--kernel", "vmlinuz", "--mount", "data:/data:ro", "--", "true"]) == 0
    options = started[0].vm
    assert options is not None
    assert (options.image, options.kernel) == (str(tmp_path / name), str(tmp_path / "vmlinuz"))
    assert options.mounts == (Mount("data", "/data", True),)


def test_without_vm_there_is_none(started: list[RunSettings]) -> None:
    assert main(["run", "--", "true"]) == 0
    assert (started[0].jail, started[0].vm) == ("auto", None)


@pytest.mark.threat("T-V21")
def test_nest_does_not_loosen_the_jail_around_qemu(started: list[RunSettings]) -> None:
    """The guest has a kernel of its own, so there is nothing to allow. The control: without --vm it is passed on."""
    assert main(["run", "--vm", "--nest", "--", "true"]) == 0
    assert main(["run", "--nest", "--", "true"]) == 0
    assert [make_plan(each, Preparations()).files.nest for each in started] == [False, True]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--kernel x", "--kernel: it applies only to a virtual machine\n  expected: --vm as well"),
        ("--image disk.raw", "--image: it applies only to a virtual machine"),
        ("--guest-root", "--guest-root: it applies only to a virtual machine"),
        ("--time-limit 5", "--time-limit: it applies only to a virtual machine"),
        ("--accel tcg --container", "--accel: it applies only to a virtual machine"),
        ("--memory 1g", "--memory: it applies only to a container or a virtual machine"),
        ("--mount a:/b --jail netns", "--mount: it applies only to a container or a virtual machine"),
        ("--vm --container", "--container, --vm: a run has one jail"),
        ("--kvm --container x", "--container, --kvm: a run has one jail"),
        ("--vm --jail netns", "--vm, --jail netns: a run has one jail"),
        ("--jail vm --container", "--container, --jail vm: a run has one jail"),
        ("--container --jail nft", "--container, --jail nft: a run has one jail"),
        ("--vm --engine docker", "--engine: it applies only to a container"),
        ("--vm --pids 9", "--pids: it applies only to a container"),
        ("--vm --user root", "--guest-root to be root in the guest"),
        ("--kvm --accel tcg", "--accel tcg: --kvm insists on KVM"),
        ("--kvm --accel auto", "--accel auto: --kvm insists on KVM"),
        ("--vm --cpus 1.5", "--cpus 1.5: a virtual machine needs whole CPUs"),
        ("--vm --cpus 0", "whole CPUs"),
        ("--vm --cpus nan", "whole CPUs"),
        ("--vm --cpus inf", "whole CPUs"),
        ("--vm --cpus 65", "up to 64"),
        ("--vm --memory 64m", "--memory 64m: too small\n  expected: at least 128m"),
        ("--vm --memory much", "not a size"),
        ("--vm --time-limit 0", "--time-limit 0: not a time"),
        ("--vm --time-limit -5", "--time-limit"),
        ("--vm --time-limit 1d", "not a time"),
        ("--vm --time-limit 721h", "not a time, or too long"),
        ("--vm --mount a:/b", "the files of this machine are in the guest already"),
        ("--vm --image disk.raw --mount a", "is not a mount"),
        ("--vm --image disk.raw --mount a:b", "b is not a full path in the guest"),
        ("--vm --image disk.raw --mount a:/dev/x", "/dev is the guest's own"),
        ("--vm --image disk.raw --mount a:/", "is the guest's own"),
        ("--vm --image missing", "there is no such file"),
        ("--vm --image .", "is not a file"),
        ("--vm --image text", "is neither a qcow2 image nor a raw disk"),
        ("--vm --image=", "--image: an empty path"),
        ("--vm --kernel=", "--kernel: an empty path"),
    ],
)  # fmt: skip
def test_what_means_nothing_starts_nothing(
    line: str, said: str, started: list[RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["run", *line.split(), "--", "true"])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_an_image_that_boots_by_itself(started: list[RunSettings], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--vm", "--image", "disk.raw", "--own-init", "--", "true"]) == 0
    assert started[0].vm is not None
    assert started[0].vm.own_init
    assert main(["run", "--vm", "--own-init", "--", "true"]) == 2
    assert "--image FILE as well" in capsys.readouterr().err
    assert main(["run", "--vm", "--image", "disk.raw", "--own-init", "--kernel", "vmlinuz", "--", "true"]) == 2
    assert "boots with its own kernel" in capsys.readouterr().err
