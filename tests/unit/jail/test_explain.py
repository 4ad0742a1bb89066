"""A jail that is not available: why, and what to do, for each way in which a kernel refuses."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from exeat.jail import explain
from exeat.jail.explain import explain_failure


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is known: no settings, no container, not inside a jail."""
    monkeypatch.setattr(explain, "_SETTINGS", {name: str(tmp_path / name) for name in explain._SETTINGS})
    monkeypatch.setattr(explain, "container", lambda: "")
    monkeypatch.setattr(explain, "is_already_inside", lambda: False)
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=15000"),
        ("unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("apparmor", "1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ],
)
@pytest.mark.parametrize("step", ["namespaces", "network", "mounts"])
def test_a_setting_that_forbids_is_named_with_its_cure(
    machine: Path, setting: str, value: str, fix: str, step: str
) -> None:
    (machine / setting).write_text(f"{value}\n")
    error = explain_failure(step, errno.EPERM, "Operation not permitted")
    assert "user namespaces" in error.public
    assert error.fix == fix
    assert str(error).splitlines()[-1] == f"  fix: {fix}"


@pytest.mark.parametrize(("setting", "value"), [("max_user_namespaces", "15000"), ("apparmor", "0")])
def test_a_setting_that_allows_is_not_blamed(machine: Path, setting: str, value: str) -> None:
    (machine / setting).write_text(value)
    error = explain_failure("namespaces", errno.EPERM, "Operation not permitted")
    assert error.detail == "Operation not permitted"
    assert "sysctl" not in error.fix


@pytest.mark.parametrize(("kind", "option"), [("docker", "systempaths=unconfined"), ("podman", "unmask=ALL")])
def test_a_container_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch, kind: str, option: str) -> None:
    monkeypatch.setattr(explain, "container", lambda: kind)
    error = explain_failure("namespaces", errno.EPERM, "no")
    assert error.fix.startswith(f"{kind} run --security-opt seccomp=unconfined")
    assert option in error.fix


def test_inside_a_jail_nothing_else_is_blamed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "apparmor").write_text("1")
    monkeypatch.setattr(explain, "is_already_inside", lambda: True)
    error = explain_failure("namespaces", errno.EPERM, "no")
    assert "already inside" in error.public
    assert "leave out the inner" in error.fix
    assert not error.is_missing  # so that no other kind of jail is tried


def test_too_many_namespaces(machine: Path) -> None:
    assert explain_failure("namespaces", errno.ENOSPC, "no").detail == "too many namespaces"


@pytest.mark.parametrize("number", [errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.ENOENT, errno.EAFNOSUPPORT])
def test_a_kernel_without_packet_rules(machine: Path, number: int) -> None:
    error = explain_failure("network", number, os.strerror(number))
    assert "nf_tables" in error.public
    assert error.fix.startswith("sudo modprobe")


def test_a_masked_proc(machine: Path) -> None:
    error = explain_failure("proc", errno.EPERM, "no")
    assert "/proc" in error.public
    assert "systempaths=unconfined" in error.fix


def test_a_folder_that_is_not_there_inside(machine: Path) -> None:
    error = explain_failure("folder", errno.ENOENT, "No such file or directory: /run/x")
    assert "working directory" in error.public
    assert "/run/x" in error.detail
    assert error.fix


def test_what_nobody_thought_of_is_told_as_it_is(machine: Path) -> None:
    error = explain_failure("some step", errno.EIO, "Input/output error")
    assert str(error) == "the jail could not be built (some step)\n  why: Input/output error"


def test_settings_that_this_kernel_lacks_are_empty(machine: Path) -> None:
    assert explain.setting("apparmor") == ""
    (machine / "apparmor").write_text("1\n")
    assert explain.setting("apparmor") == "1"


def test_this_process_is_not_in_a_jail() -> None:
    assert explain.is_already_inside() is False


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENODEV, "modprobe overlay"),
        (errno.EACCES, "SELinux or AppArmor"),
        (errno.EINVAL, "cannot layer the root|no more than two"),
        (errno.E2BIG, "EXEAT_HOME"),
        (errno.ELOOP, "exeat files discard"),
        (errno.EIO, "--files host"),
    ],
)
def test_a_view_that_cannot_be_had_is_explained(number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "_has_modules", lambda: True)
    error = explain_failure("view", number, "mount: no")
    assert re.search(said, f"{error.detail} {error.fix}")
    assert not error.is_missing  # another jail would have no view either
