"""What goes wrong with a virtual machine is said in words, with what to do, and nothing weaker is started instead."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from exeat import SandboxManager
from tests.support.fixtures.vms import Guest
from tests.support.runs.running import (
    NOBODY,
    Running,
    descendants_of,
    environment,
    exeat,
    folder_of,
    project,
    python,
)

TRUE = ["true"]
# All processes above this one are stopped, as by a debugger. Not if the guest has booted so slowly that its time may be
# over first.
STOP_THE_AGENT = """
import ctypes, os, time
if time.clock_gettime(time.CLOCK_BOOTTIME) > 10:
    time.sleep(60)
print("begun", flush=True)
time.sleep(1)  # for the agent to pass it on
pid = os.getppid()
while pid:
    with open(f"/proc/{pid}/stat") as file:
        above = int(file.read().rpartition(")")[2].split()[1])
    ctypes.CDLL(None).ptrace(16, pid, 0, 0)
    pid = above
time.sleep(60)
"""


def test_without_qemu(tmp_path: Path) -> None:
    done = exeat("--vm", command=TRUE, env=environment(PATH=str(tmp_path)))
    assert done.status == 2
    assert "--vm needs QEMU, which is not installed" in done.stderr
    assert "sudo apt install qemu-system-x86" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kernel", "/nowhere/vmlinuz"], "there is no such file"),
        (["--kernel", "/etc/passwd"], "is not a Linux kernel for x86"),
        (["--kernel", "/etc"], "is a folder"),
        (
            ["--memory", "900t"],
            r"not enough memory for the virtual machine\n  why: it would have 943718400 MiB, and this machine has",
        ),
        (["--memory", "900g"], r"it would have 921600 MiB, and this machine has \d+ MiB\n  fix: --memory \d+m"),
        (["--unix", "/run/x.sock"], "a guest cannot reach a Unix socket"),
        (["--files", "host"], "--files view"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_had_starts_nothing(options: list[str], said: str, guest: Guest) -> None:
    env = environment(**guest.environment)
    done = exeat("--vm", "--accel", "tcg", *options, command=["sh", "-c", "echo it runs"], env=env)
    assert (done.status, done.stdout) == (2, "")
    assert re.search(said, done.stderr), done.stderr


def test_a_kernel_that_only_root_may_read(guest: Guest) -> None:
    """As Ubuntu has them."""
    if os.geteuid() != 0:
        pytest.skip("only root can take a kernel away from others")
    with folder_of(NOBODY) as folder:
        kernel = folder / "vmlinuz"
        kernel.write_bytes(guest.kernel.read_bytes()[:4096])
        kernel.chmod(0o600)
        done = exeat("--vm", "--kernel", str(kernel), command=TRUE, uid=NOBODY)
    assert done.status == 2
    assert f"the kernel {kernel} cannot be used\n  why: you may not read it" in done.stderr
    assert f"sudo chmod +r {kernel}" in done.stderr


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (["virtio_pci", "virtio_console", "virtio_net"], "has neither virtiofs nor 9p"),
        (["virtiofs", "virtio_console", "virtio_net"], "has no virtio_pci"),
    ],
    ids=["no shared files", "no devices"],
)
def test_a_kernel_that_lacks_something(modules: list[str], said: str, guest: Guest, tmp_path: Path) -> None:
    """By what its modules folder lists."""
    version = guest.kernel.name.removeprefix("vmlinuz-")
    folder = tmp_path / "lib/modules" / version
    folder.mkdir(parents=True)
    (folder / "modules.dep").write_text("".join(f"kernel/{name}.ko:\n" for name in modules))
    (folder / "modules.builtin").write_text("")
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / guest.kernel.name).symlink_to(guest.kernel)
    done = exeat("--vm", "--kernel", str(tmp_path / "boot" / guest.kernel.name), command=TRUE)
    assert done.status == 2
    assert said in done.stderr, done.stderr


def test_kvm_that_is_insisted_on(guest: Guest) -> None:
    """Where it runs guests, the command runs. Elsewhere it is an error with a reason, never an emulation."""
    done = exeat("--kvm", command=["sh", "-c", "echo it runs"], env=environment(**guest.environment))
    if done.status == 0:
        assert done.stdout == "it runs\n"
        return
    assert (done.status, done.stdout) == (2, "")
    assert "KVM cannot be used here\n  why: " in done.stderr
    assert "  fix: " in done.stderr


@pytest.mark.threat("T-V21")
def test_variables_for_the_command_choose_no_kernel(
    guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that embeds exeat passes them on from elsewhere. Its own variables are what counts."""
    monkeypatch.setenv("EXEAT_KERNEL", str(guest.kernel))
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project())
    with SandboxManager({"sandbox": {"jail": "vm"}}) as manager:
        done = manager.run_sync(["/bin/uname", "-r"], env={"EXEAT_KERNEL": "/etc/passwd", "PATH": "/nowhere"})
    assert done.stdout.decode().strip() in guest.kernel.name


def test_a_guest_that_powers_off(guest: Guest) -> None:
    """It takes its command with it: as if that had been killed."""
    script = "echo begun; echo o > /proc/sysrq-trigger; sleep 60"
    done = exeat(*guest.options, "--guest-root", command=["sh", "-c", script])
    assert (done.status, done.stdout) == (137, "begun\n")
    assert "the guest has powered off, and its command with it" in done.stderr
    assert "reboot: Power down" in done.stderr


def test_a_guest_that_panics(guest: Guest) -> None:
    done = exeat(*guest.options, "--guest-root", command=["sh", "-c", "echo c > /proc/sysrq-trigger"])
    assert done.status == 137
    assert "the guest's kernel has panicked: sysrq triggered crash\nexeat:   the guest's console:\n" in done.stderr


def test_qemu_that_is_killed_has_not_been_powered_off(guest: Guest, tmp_path: Path) -> None:
    """As the kernel does it where memory runs out. The guest hangs up first, as one does that powers off."""
    with Running(tmp_path, *guest.options, "--quiet", command=["sh", "-c", "echo begun; sleep 60"]) as run:
        run.wait_for("begun")
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in descendants_of(run.process.pid)}
        (qemu,) = (pid for pid, name in names.items() if "qemu-system" in name)
        os.kill(qemu, signal.SIGKILL)
        assert run.wait() == 137
    assert run.errors.startswith("exeat: QEMU was killed, as happens when memory runs out\n"), run.errors


def test_the_time_limit_ends_what_does_not_end(guest: Guest, tmp_path: Path) -> None:
    """A command that ignores signals, and a guest that answers nothing: its first process is stopped by a debugger."""
    limited = (*guest.options, "--guest-root", "--time-limit", "15")
    stubborn = ["sh", "-c", "trap '' TERM; echo begun; while :; do sleep 1; done"]
    folders = [tmp_path / name for name in ("stubborn", "hanging")]
    for folder in folders:
        folder.mkdir()
    with (
        Running(folders[0], *limited, command=stubborn, cwd=project()) as one,
        Running(folders[1], *limited, command=python(STOP_THE_AGENT), cwd=project()) as other,
    ):
        assert (one.wait(), other.wait()) == (124, 124), one.errors + other.errors
    for run in (one, other):
        assert run.errors.startswith("exeat: the guest's time was up (15 s)")
    if one.out:  # on a machine that is very busy it has not booted by then
        assert (one.out, one.errors) == ("begun\n", "exeat: the guest's time was up (15 s)\n")
    if other.out:
        assert "(15 s); it no longer answered, and was powered off" in other.errors


def test_a_time_limit_that_ends_before_the_boot_does(guest: Guest) -> None:
    done = exeat(*guest.options, "--time-limit", "0.2", command=TRUE)
    assert done.status == 124
    assert "the guest's time was up (0.2 s)" in done.stderr
